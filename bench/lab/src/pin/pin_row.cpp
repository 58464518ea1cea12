// SPDX-License-Identifier: Apache-2.0
#include "pin/pin_row.hpp"

#include <array>

namespace kvferry::bench {
namespace {

constexpr std::array<ColumnOf<PinRow>, 15> kPinColumns = {{
    {{"memory", "memory", ""}, member<&PinRow::memory>},
    {{"pages", "pages", ""}, member<&PinRow::pages>},
    {{"threads", "threads", ""}, member<&PinRow::threads>},
    {{"piece_bytes", "piece", "bytes"}, member<&PinRow::piece_bytes>},
    {{"bytes", "size", "bytes"}, member<&PinRow::bytes>},
    {{"rounds", "rounds", "", kLastRank}, member<&PinRow::rounds>},
    {{"populate_s", "populate", "s"}, member<&PinRow::populate_s>},
    {{"register_s", "register", "s"}, member<&PinRow::register_s>},
    {{"ready_s", "ready", "s"}, member<&PinRow::ready_s>},
    {{"unregister_s", "unregister", "s"}, member<&PinRow::unregister_s>},
    {{"total_s", "total", "s"}, member<&PinRow::total_s>},
    {{"populate_gb_per_s", "populate", "GB/s"}, member<&PinRow::populate_gb_per_s>},
    {{"percent_of_bare_populate", "of bare populate", "%"}, member<&PinRow::percent_of_bare>},
    {{"huge_percent", "huge pages", "%"}, member<&PinRow::huge_percent>},
    {{"verified", "verified", "", kLastRank}, member<&PinRow::verified>},
}};

}  // namespace

Table table_of(std::span<const PinRow> rows) {
  return table_of(std::span<const ColumnOf<PinRow>>(kPinColumns), rows);
}

void read_row(PinRow& row, const CellAt& cell_at) {
  set_cells(std::span<const ColumnOf<PinRow>>(kPinColumns), row, cell_at);
}

}  // namespace kvferry::bench
