// SPDX-License-Identifier: Apache-2.0
#include "fleet/fleet_row.hpp"

#include <array>

namespace kvferry::bench::fleet {
namespace {

constexpr int kFirstRank = 10;

constexpr std::array<ColumnOf<FleetRow>, 19> kFleetColumns = {{
    {{"traffic", "traffic", "", kFirstRank}, member<&FleetRow::traffic>},
    {{"nodes", "nodes", "", kFirstRank}, member<&FleetRow::nodes>},
    {{"capacity_blocks", "tier", "blocks", kFirstRank}, member<&FleetRow::capacity_blocks>},
    {{"capacity_gb", "tier", "GB"}, member<&FleetRow::capacity_gb>},
    {{"routing", "routing", "", kFirstRank}, member<&FleetRow::routing>},
    {{"far_tier", "far tier", "", kFirstRank}, member<&FleetRow::far_tier>},
    {{"loaded_percent", "loaded", "%", kFirstRank}, member<&FleetRow::loaded_percent>},
    {{"near_percent", "from tier", "%", kFirstRank}, member<&FleetRow::near_percent>},
    {{"far_percent", "from far", "%", kFirstRank}, member<&FleetRow::far_percent>},
    {{"ttft_mean_s", "TTFT mean", "s", kFirstRank}, member<&FleetRow::ttft_mean_s>},
    {{"ttft_p99_s", "TTFT p99", "s", kFirstRank}, member<&FleetRow::ttft_p99_s>},
    {{"busiest_over_mean", "busiest", "/ mean", kFirstRank}, member<&FleetRow::busiest_over_mean>},
    {{"near_loaded_gb", "tier loads", "GB"}, member<&FleetRow::near_loaded_gb>},
    {{"near_stored_gb", "tier stores", "GB"}, member<&FleetRow::near_stored_gb>},
    {{"far_loaded_gb", "far loads", "GB"}, member<&FleetRow::far_loaded_gb>},
    {{"far_stored_gb", "far stores", "GB"}, member<&FleetRow::far_stored_gb>},
    {{"far_capacity_gb", "far tier", "GB"}, member<&FleetRow::far_capacity_gb>},
    {{"simulation_s", "simulation", "s"}, member<&FleetRow::simulation_s>},
    {{"verified", "verified", "", kLastRank}, member<&FleetRow::verified>},
}};

}  // namespace

Table table_of(std::span<const FleetRow> rows) {
  return bench::table_of(std::span<const ColumnOf<FleetRow>>(kFleetColumns), rows);
}

void read_row(FleetRow& row, const CellAt& cell_at) {
  set_cells(std::span<const ColumnOf<FleetRow>>(kFleetColumns), row, cell_at);
}

}  // namespace kvferry::bench::fleet
