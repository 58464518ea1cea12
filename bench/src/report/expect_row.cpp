// SPDX-License-Identifier: Apache-2.0
#include "report/expect_row.hpp"

#include <array>

namespace kvferry::bench {
namespace {

constexpr std::array<ColumnOf<ExpectRow>, 13> kColumns = {{
    {{"direction", "direction", "", 1}, member<&ExpectRow::direction>},
    {{"path", "path", "", 2}, member<&ExpectRow::path>},
    {{"placement", "placement", "", 40}, member<&ExpectRow::placement>},
    {{"fragment_bytes", "fragment", "bytes", 11}, member<&ExpectRow::fragment_bytes>},
    {{"count", "count", "", 12}, member<&ExpectRow::count>},
    {{"bytes", "transfer", "bytes", 15}, member<&ExpectRow::bytes>},
    {{"piece_bytes", "piece", "bytes", 13}, member<&ExpectRow::piece_bytes>},
    {{"limit_gb_per_s", "store limit", "GB/s", 8}, member<&ExpectRow::limit_gb_per_s>},
    {{"co_run", "beside", "", 7}, member<&ExpectRow::co_run>},
    {{"expected_gb_per_s", "expected", "GB/s", 2}, member<&ExpectRow::expected_gb_per_s>},
    {{"percent_of_peak", "of peak", "%", 3}, member<&ExpectRow::percent_of_peak>},
    {{"expected_slow_down_percent", "slow-down", "%", 7},
     member<&ExpectRow::expected_slow_down_percent>},
    {{"bound_by", "bound by", "", 20}, member<&ExpectRow::bound_by>},
}};

}  // namespace

Table table_of(std::span<const ExpectRow> rows) {
  return table_of(std::span<const ColumnOf<ExpectRow>>(kColumns), rows);
}

void read_row(ExpectRow& row, const CellAt& cell_at) {
  set_cells(std::span<const ColumnOf<ExpectRow>>(kColumns), row, cell_at);
}

}  // namespace kvferry::bench
