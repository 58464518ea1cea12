// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

namespace kvferry::ptx {

/// Calls `run` with the seeds 0 to `usual` - 1, until one fails the test, and says how to replay
/// that one. KVFERRY_SEED runs one seed, KVFERRY_NUM_SEEDS so many instead of `usual`;
/// KVFERRY_SOAK_SECONDS runs fresh seeds for so long.
void for_each_seed(std::uint64_t usual, const std::function<void(std::uint64_t seed)>& run);

}  // namespace kvferry::ptx
