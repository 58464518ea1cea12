// SPDX-License-Identifier: Apache-2.0
#include "share/share_row.hpp"

#include <array>

namespace kvferry::bench {
namespace {

constexpr std::array<ColumnOf<ShareRow>, 10> kShareColumns = {{
    {{"what", "what", ""}, member<&ShareRow::what>},
    {{"block_bytes", "blocks", "bytes"}, member<&ShareRow::block_bytes>},
    {{"rounds", "rounds", "", kLastRank}, member<&ShareRow::rounds>},
    {{"steps_per_ms", "together", "steps/ms"}, member<&ShareRow::steps_per_ms>},
    {{"over_one", "over one", ""}, member<&ShareRow::over_one>},
    {{"hit_percent", "hits", "%"}, member<&ShareRow::hit_percent>},
    {{"ms_p50", "p50", "ms"}, member<&ShareRow::ms_p50>},
    {{"ms_p99", "p99", "ms"}, member<&ShareRow::ms_p99>},
    {{"goal", "goal", ""}, member<&ShareRow::goal>},
    {{"verified", "verified", "", kLastRank}, member<&ShareRow::verified>},
}};

}  // namespace

Table table_of(std::span<const ShareRow> rows) {
  return table_of(std::span<const ColumnOf<ShareRow>>(kShareColumns), rows);
}

void read_row(ShareRow& row, const CellAt& cell_at) {
  set_cells(std::span<const ColumnOf<ShareRow>>(kShareColumns), row, cell_at);
}

}  // namespace kvferry::bench
