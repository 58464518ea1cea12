// SPDX-License-Identifier: Apache-2.0
#include "trace/trace_input.hpp"

#include "kvferry/base/error.hpp"

#include "measure/stopwatch.hpp"
#include "options/common_options.hpp"
#include "options/sizes.hpp"
#include "trace/list_option.hpp"
#include "trace/read_trace.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>

namespace kvferry::bench::trace {
namespace {

/// In tokens. These are 3,000, 8,000, 16,000 and 40,000 of Mooncake's blocks: sizes for which
/// others have published hit rates.
constexpr std::array<std::uint64_t, 4> kDefaultCapacities = {
    std::uint64_t{3'000} * kMooncakeBlockTokens, std::uint64_t{8'000} * kMooncakeBlockTokens,
    std::uint64_t{16'000} * kMooncakeBlockTokens, std::uint64_t{40'000} * kMooncakeBlockTokens};

std::vector<const Family*> families_named(const std::vector<std::string>& names) {
  std::vector<const Family*> chosen;
  for (const std::string& name : names) {
    std::string known;
    const std::size_t num_before = chosen.size();
    for (const Family& family : families()) {
      if (name == family.name || name == "all") chosen.push_back(&family);
      known += std::string(family.name) + ", ";
    }
    if (chosen.size() == num_before) {
      throw ConfigError(
          fmt::format("'{}' is not a kind of synthetic traffic: write {}all", name, known));
    }
  }
  return chosen;
}

}  // namespace

void TraceInput::add_options(CLI::App& app) {
  CLI::Option* const file =
      app.add_option("FILE", file_,
                     "file of requests with the ids of their blocks, or a directory of WEKA "
                     "sessions");
  app.add_option("--format", format_, "format of FILE: auto, mooncake, qwen, weka")
      ->capture_default_str();
  add_list(app, "--traffic", traffic_,
           "synthetic requests instead of FILE: zipf-1.0, loop-1.1, all")
      ->excludes(file);
  add_list(app, "--capacity", capacities_,
           "blocks of the tier [3000,8000,16000,40000 blocks of 512 "
           "tokens; quick: the first]")
      ->check(
          CLI::Range(std::uint64_t{1}, std::uint64_t{std::numeric_limits<std::int32_t>::max()}));
  add_list(app, "--tier-size", tier_sizes_,
           "bytes of the tier, for example 16GiB; it holds the whole blocks that fit")
      ->type_name("SIZE");
  app.add_option("--block-tokens", block_tokens_,
                 "tokens of a block [mooncake: 512; qwen: 16; weka: as the file says]")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--block-bytes", block_bytes_text_,
                 "bytes of a block on one rank [128 KiB a token: Llama 3.1 8B, 16 bits]");
  add_model_size_options(app, model_);
  app.add_option("--session-gap", session_gap_s_,
                 "seconds between the starts of WEKA's sessions, which the files do not say")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--prefill-tokens-per-second", rates_.prefill_tokens_per_second,
                 "how fast the engine computes tokens that are not hits: effective FLOP/s "
                 "divided by 2 FLOP per parameter [30000: 8.03e9 parameters, half of 989 "
                 "TFLOP/s]")
      ->check(CLI::PositiveNumber);
  app.add_option("--link-gb-per-s", rates_.link_gb_per_s,
                 "rate of the link in either direction, in GB/s [55: PCIe 5 x16]")
      ->check(CLI::PositiveNumber);
}

void TraceInput::check_options(const CommonOptions& options) {
  if (file_.empty() == traffic_.empty()) {
    throw ConfigError("this needs a FILE, or --traffic in its place");
  }
  quick_ = options.effort == Effort::kQuick;
  families_ = families_named(traffic_);
  if (!block_bytes_text_.empty()) block_bytes_ = bytes_from(block_bytes_text_);
  if (block_shape(model_) && block_bytes_) {
    throw ConfigError(
        "--model and --block-bytes both say how large a block is: leave out one of "
        "them");
  }
  for (const std::string& size : tier_sizes_) tier_bytes_.push_back(bytes_from(size));
  ReadOptions read;
  read.format = trace_format_from(format_);
  if (block_tokens_ > 0) read.block_tokens = block_tokens_;
  read.session_gap_s = session_gap_s_;
  if (file_.empty()) return;
  const Stopwatch clock;
  trace_ = read_trace(file_, read);
  read_s_ = std::chrono::duration<double>(clock.cost().cpu).count();
  static_cast<void>(capacities(*trace_));
}

std::size_t TraceInput::num_capacities() const {
  return trace_ ? capacities(*trace_).size()
                : std::max<std::size_t>(capacities_.size() + tier_bytes_.size(), 1);
}

void TraceInput::for_each(std::uint64_t seed, const Use& use) const {
  if (trace_) use(*trace_, "");
  for (const Family* const family : families_) use(family->make(seed), family->name);
}

TimeModel TraceInput::time_model(const Trace& requests) const {
  TimeModel model = rates_;
  model.block_bytes = block_bytes_.value_or(requests.block_tokens() * kDefaultBytesPerToken);
  if (!model_.model.empty()) {
    ModelOptions named = model_;
    named.block_tokens = requests.block_tokens();
    model.block_bytes = block_shape(named)->block_bytes();
  }
  return model;
}

std::vector<std::uint64_t> TraceInput::capacities(const Trace& requests) const {
  std::vector<std::uint64_t> blocks = capacities_;
  const std::uint64_t block_bytes = time_model(requests).block_bytes;
  for (std::size_t i = 0; i < tier_bytes_.size(); ++i) {
    blocks.push_back(tier_bytes_[i] / block_bytes);
    if (blocks.back() == 0) {
      throw ConfigError(fmt::format("--tier-size {} is smaller than a block of {}", tier_sizes_[i],
                                    bytes_text(block_bytes)));
    }
  }
  if (!blocks.empty()) return blocks;
  if (!families_.empty()) return {kFamilyCapacity};
  for (const std::uint64_t tokens : kDefaultCapacities) {
    blocks.push_back(std::max<std::uint64_t>(tokens / requests.block_tokens(), 1));
    if (quick_) break;
  }
  return blocks;
}

}  // namespace kvferry::bench::trace
