// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "options/model_options.hpp"
#include "trace/families.hpp"
#include "trace/time_saved.hpp"
#include "trace/trace.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace kvferry::bench {
struct CommonOptions;
}

namespace kvferry::bench::trace {

/// The options that the subcommands on traces share: which requests there are, how many bytes a
/// block has, how large the tiers are, and how fast engine and link are.
class TraceInput {
 public:
  /// `app` and its options refer to this object.
  void add_options(CLI::App& app);
  /// Reads the file, if one was named. Throws ConfigError.
  void check_options(const CommonOptions& options);

  /// Number of traces, and number of sizes of tiers for each.
  [[nodiscard]] std::size_t num_traces() const { return trace_ ? 1 : families_.size(); }
  [[nodiscard]] std::size_t num_capacities() const;

  /// Calls `use` with each trace and with the name of its synthetic traffic, empty for a file.
  /// Only one trace is in memory at a time.
  using Use = std::function<void(const Trace& requests, std::string_view traffic)>;
  void for_each(std::uint64_t seed, const Use& use) const;

  /// The requested sizes of tiers, in blocks.
  [[nodiscard]] std::vector<std::uint64_t> capacities(const Trace& requests) const;
  /// The rates alone, which are the same for all traces.
  [[nodiscard]] const TimeModel& rates() const { return rates_; }
  /// The size of a block in the memory of one rank, and the rates.
  [[nodiscard]] TimeModel time_model(const Trace& requests) const;
  /// Processor time of reading the file.
  [[nodiscard]] double read_s() const { return read_s_; }

 private:
  std::string file_;
  std::string format_ = "auto";
  std::vector<std::string> traffic_;
  std::uint32_t block_tokens_ = 0;
  std::string block_bytes_text_;
  ModelOptions model_;
  std::vector<std::uint64_t> capacities_;
  std::vector<std::string> tier_sizes_;
  double session_gap_s_ = 60;
  TimeModel rates_;

  bool quick_ = false;
  std::vector<const Family*> families_;
  std::vector<std::uint64_t> tier_bytes_;
  std::optional<std::uint64_t> block_bytes_;
  std::optional<Trace> trace_;
  double read_s_ = 0;
};

}  // namespace kvferry::bench::trace
