// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "measure/row_measurement.hpp"
#include "meta/meta_operation.hpp"
#include "meta/meta_row.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace kvferry::bench {

enum class Temperature : std::uint8_t {
  kWarm,  ///< Everything that is touched was looked up just before.
  kCold   ///< Other memory was read just before, as much as the sweep has.
};

/// Reads memory of its own, so that the caches hold nothing else.
class CacheSweep {
 public:
  /// `bytes` may be 0. Throws std::bad_alloc.
  explicit CacheSweep(std::uint64_t bytes) : words_(bytes / sizeof(std::uint64_t), 1) {}
  void run();

 private:
  std::vector<std::uint64_t> words_;
  volatile std::uint64_t sum_ = 0;
};

/// What a block is to cost at most; nothing for small tiers, and for parts without a goal.
[[nodiscard]] std::optional<double> goal_ns(const MetaPart& part, std::uint32_t num_resident,
                                            Temperature temperature);

/// Measures every part of the operation, a row each, all of them in the same rounds, and the bare
/// table in each round behind it. `on_round(done, of)` is called before each. Answers are checked
/// by `verifier`, those of warm-up rounds too. Throws std::bad_alloc.
[[nodiscard]] std::vector<MetaRow> measure_meta(
    MetaOperation& operation, Temperature temperature, CacheSweep& sweep, const RoundCounts& rounds,
    Verifier& verifier, const std::function<void(std::uint32_t, std::uint32_t)>& on_round);

}  // namespace kvferry::bench
