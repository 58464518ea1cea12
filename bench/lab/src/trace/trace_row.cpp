// SPDX-License-Identifier: Apache-2.0
#include "trace/trace_row.hpp"

#include <array>

namespace kvferry::bench::trace {
namespace {

constexpr std::array<ColumnOf<TraceRow>, 18> kTraceColumns = {{
    {{"traffic", "traffic", ""}, member<&TraceRow::traffic>},
    {{"capacity_blocks", "capacity", "blocks"}, member<&TraceRow::capacity_blocks>},
    {{"capacity_gb", "capacity", "GB"}, member<&TraceRow::capacity_gb>},
    {{"policy", "policy", ""}, member<&TraceRow::policy>},
    {{"loadable_hit_percent", "loadable", "%"}, member<&TraceRow::loadable_hit_percent>},
    {{"percent_of_optimum", "of optimum", "%"}, member<&TraceRow::percent_of_optimum>},
    {{"hit_percent", "hits", "%"}, member<&TraceRow::hit_percent>},
    {{"loaded_blocks", "loaded", "blocks"}, member<&TraceRow::loaded_blocks>},
    {{"loaded_gb", "loaded", "GB"}, member<&TraceRow::loaded_gb>},
    {{"stored_blocks", "stored", "blocks"}, member<&TraceRow::stored_blocks>},
    {{"stored_gb", "stored", "GB"}, member<&TraceRow::stored_gb>},
    {{"evicted_blocks", "evicted", "blocks"}, member<&TraceRow::evicted_blocks>},
    {{"saved_s", "time saved", "s"}, member<&TraceRow::saved_s>},
    {{"load_s", "loads", "s"}, member<&TraceRow::load_s>},
    {{"store_s", "stores", "s"}, member<&TraceRow::store_s>},
    {{"replay_s", "replay", "s"}, member<&TraceRow::replay_s>},
    {{"million_accesses_per_s", "accesses", "M/s"}, member<&TraceRow::million_accesses_per_s>},
    {{"verified", "verified", "", kLastRank}, member<&TraceRow::verified>},
}};

}  // namespace

Table table_of(std::span<const TraceRow> rows) {
  return bench::table_of(std::span<const ColumnOf<TraceRow>>(kTraceColumns), rows);
}

void read_row(TraceRow& row, const CellAt& cell_at) {
  set_cells(std::span<const ColumnOf<TraceRow>>(kTraceColumns), row, cell_at);
}

}  // namespace kvferry::bench::trace
