// SPDX-License-Identifier: Apache-2.0
#include "report/transfer_row.hpp"

#include <array>

namespace kvferry::bench {
namespace {

constexpr std::array<ColumnOf<TransferRow>, 45> kColumns = {{
    {{"direction", "direction", "", 1}, member<&TransferRow::direction>},
    {{"path", "path", "", 2}, member<&TransferRow::path>},
    {{"memory", "memory", "", 4}, member<&TransferRow::memory>},
    {{"device_ordinal", "device", "", 5}, member<&TransferRow::device>},
    {{"numa_node", "NUMA node", "", 6}, member<&TransferRow::numa_node>},
    {{"placement", "placement", "", 40}, member<&TransferRow::placement>},
    {{"fragment_bytes", "fragment", "bytes", 12}, member<&TransferRow::fragment_bytes>},
    {{"count", "count", "", 13}, member<&TransferRow::count>},
    {{"bytes", "transfer", "bytes", 15}, member<&TransferRow::bytes>},
    {{"gb_per_s", "rate", "GB/s", 2}, member<&TransferRow::gb_per_s>},
    {{"percent_of_peak", "of peak", "%", 3}, member<&TransferRow::percent_of_peak>},
    {{"descriptors", "descriptors", "", 60}, member<&TransferRow::descriptors>},
    {{"piece_bytes", "piece", "bytes", 9}, member<&TransferRow::piece_bytes>},
    {{"rounds", "rounds", "", kLastRank}, member<&TransferRow::rounds>},
    {{"submit_us_mean", "submit mean", "us"}, member<&TransferRow::submit_us_mean>},
    {{"submit_us_p99", "submit p99", "us"}, member<&TransferRow::submit_us_p99>},
    {{"queue_us", "queue", "us"}, member<&TransferRow::queue_us>},
    {{"transfer_us_min", "min", "us"}, member<&TransferRow::transfer_us_min>},
    {{"transfer_us_p50", "p50", "us", 10}, member<&TransferRow::transfer_us_p50>},
    {{"transfer_us_p99", "p99", "us", 11}, member<&TransferRow::transfer_us_p99>},
    {{"transfer_us_p999", "p999", "us"}, member<&TransferRow::transfer_us_p999>},
    {{"round_bytes", "round", "bytes"}, member<&TransferRow::round_bytes>},
    {{"round_us_p50", "round p50", "us"}, member<&TransferRow::round_us_p50>},
    {{"threads", "threads", "", 8}, member<&TransferRow::threads>},
    {{"percent_of_host_copy", "of host copy", "%"}, member<&TransferRow::percent_of_host_copy>},
    {{"multiprocessors", "SMs", ""}, member<&TransferRow::multiprocessors>},
    {{"cpu_us_per_descriptor", "CPU/descr.", "us"}, member<&TransferRow::cpu_us_per_descriptor>},
    {{"limit_gb_per_s", "store limit", "GB/s", 8}, member<&TransferRow::limit_gb_per_s>},
    {{"verify", "verify", "", 41}, member<&TransferRow::verify>},
    {{"untagged_gb_per_s", "without tags", "GB/s", 42}, member<&TransferRow::untagged_gb_per_s>},
    {{"tagged_share", "with/without", "", 9}, member<&TransferRow::tagged_share>},
    {{"blocks_checked", "checked", ""}, member<&TransferRow::blocks_checked>},
    {{"blocks_damaged", "damaged", "", 9}, member<&TransferRow::blocks_damaged>},
    {{"co_run", "beside", "", 7}, member<&TransferRow::co_run>},
    {{"iteration_us_alone_p50", "alone p50", "us"}, member<&TransferRow::iteration_us_alone_p50>},
    {{"iteration_us_alone_p99", "alone p99", "us"}, member<&TransferRow::iteration_us_alone_p99>},
    {{"iteration_us_p50", "beside p50", "us"}, member<&TransferRow::iteration_us_p50>},
    {{"iteration_us_p99", "beside p99", "us"}, member<&TransferRow::iteration_us_p99>},
    {{"slow_down_percent", "slow-down", "%", 7}, member<&TransferRow::slow_down_percent>},
    {{"slow_down_percent_p99", "slow-down p99", "%"}, member<&TransferRow::slow_down_percent_p99>},
    {{"expected_gb_per_s", "expected", "GB/s", 30}, member<&TransferRow::expected_gb_per_s>},
    {{"expected_slow_down_percent", "expected", "%"},
     member<&TransferRow::expected_slow_down_percent>},
    {{"bound_by", "bound by", ""}, member<&TransferRow::bound_by>},
    {{"off_model", "off model", "", 14}, member<&TransferRow::off_model>},
    {{"verified", "verified", "", kLastRank}, member<&TransferRow::verified>},
}};

}  // namespace

Table table_of(std::span<const TransferRow> rows) {
  return table_of(std::span<const ColumnOf<TransferRow>>(kColumns), rows);
}

void read_row(TransferRow& row, const CellAt& cell_at) {
  set_cells(std::span<const ColumnOf<TransferRow>>(kColumns), row, cell_at);
}

}  // namespace kvferry::bench
