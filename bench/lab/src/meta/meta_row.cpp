// SPDX-License-Identifier: Apache-2.0
#include "meta/meta_row.hpp"

#include <array>

namespace kvferry::bench {
namespace {

constexpr std::array<ColumnOf<MetaRow>, 13> kMetaColumns = {{
    {{"operation", "operation", ""}, member<&MetaRow::operation>},
    {{"tier", "tier", ""}, member<&MetaRow::tier>},
    {{"temperature", "caches", ""}, member<&MetaRow::temperature>},
    {{"resident", "resident", "blocks"}, member<&MetaRow::resident>},
    {{"batch", "batch", "blocks"}, member<&MetaRow::batch>},
    {{"policy", "policy", ""}, member<&MetaRow::policy>},
    {{"rounds", "rounds", "", kLastRank}, member<&MetaRow::rounds>},
    {{"ns_per_block_p50", "p50", "ns/block"}, member<&MetaRow::ns_p50>},
    {{"ns_per_block_p99", "p99", "ns/block"}, member<&MetaRow::ns_p99>},
    {{"bare_ns_per_block", "bare table", "ns/block"}, member<&MetaRow::bare_ns>},
    {{"ratio", "over bare", ""}, member<&MetaRow::ratio>},
    {{"goal_ns_per_block", "goal", "ns/block"}, member<&MetaRow::goal_ns>},
    {{"verified", "verified", "", kLastRank}, member<&MetaRow::verified>},
}};

}  // namespace

Table table_of(std::span<const MetaRow> rows) {
  return table_of(std::span<const ColumnOf<MetaRow>>(kMetaColumns), rows);
}

void read_row(MetaRow& row, const CellAt& cell_at) {
  set_cells(std::span<const ColumnOf<MetaRow>>(kMetaColumns), row, cell_at);
}

}  // namespace kvferry::bench
