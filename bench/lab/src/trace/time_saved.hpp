// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trace/replay.hpp"

#include <cstdint>

namespace kvferry::bench::trace {

/// Bytes of the KV cache of one token: Llama 3.1 8B in 16 bits, 32 layers of 8 KV heads of 128 keys
/// and values (its config.json).
inline constexpr std::uint64_t kDefaultBytesPerToken = std::uint64_t{32} * 8 * 128 * 2 * 2;

/// Tokens per second of a prefill without its attention: 2 FLOP per parameter and token, 8.03e9
/// parameters (Llama 3.1 8B's model card), at half of an H100 SXM's dense 989 TFLOP/s in bf16
/// (NVIDIA's data sheet; the half is an assumption): 30.8e3, rounded down. With the bytes above
/// that is 4 GB/s of KV cache.
inline constexpr double kDefaultPrefillTokensPerSecond = 30e3;

/// PCIe 5 x16, pinned, by copy engines, in one direction (DeepSpeed #8283).
inline constexpr double kDefaultLinkGbPerS = 55;

/// The rates that convert counts to time.
struct TimeModel {
  std::uint64_t block_bytes = 0;
  double prefill_tokens_per_second = kDefaultPrefillTokensPerSecond;
  double link_gb_per_s = kDefaultLinkGbPerS;  ///< Of either direction.
};

/// An estimate. `prefill_s` excludes attention, whose cost per token grows with the prompt. So
/// `prefill_s` and `saved_s` are too small for long prompts.
struct TimeEstimate {
  double prefill_s = 0;  ///< Time to compute the tokens that were loaded.
  double load_s = 0;     ///< Time of the loads' copies.
  double store_s = 0;    ///< Time of the stores' copies, which run during the computation.
  double saved_s = 0;    ///< prefill_s - load_s.
};
[[nodiscard]] TimeEstimate estimate_time(const ReplayResult& result, const TimeModel& model);

}  // namespace kvferry::bench::trace
