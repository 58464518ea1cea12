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
  kCold   ///< Other memory, of the sweep's size, was read just before.
};

/// Reads its own memory, so that the caches hold nothing else.
class CacheSweep {
 public:
  /// `bytes` may be 0. Throws std::bad_alloc.
  explicit CacheSweep(std::uint64_t bytes) : words_(bytes / sizeof(std::uint64_t), 1) {}
  void run();

 private:
  std::vector<std::uint64_t> words_;
  volatile std::uint64_t sum_ = 0;
};

/// The goal for the cost of a block; unset for small tiers, and for parts without a goal.
[[nodiscard]] std::optional<double> goal_ns(const MetaPart& part, std::uint32_t num_resident,
                                            Temperature temperature);

/// Measures every part of the operation, one row for each, all in the same rounds. In each round
/// the bare table follows. `on_round(done, of)` is called before each round. `verifier` checks the
/// answers, including those of warm-up rounds. Throws std::bad_alloc.
[[nodiscard]] std::vector<MetaRow> measure_meta(
    MetaOperation& operation, Temperature temperature, CacheSweep& sweep, const RoundCounts& rounds,
    Verifier& verifier, const std::function<void(std::uint32_t, std::uint32_t)>& on_round);

}  // namespace kvferry::bench
