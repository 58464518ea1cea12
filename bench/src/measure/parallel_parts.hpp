// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

namespace kvferry::bench {

/// As many threads as copy faster together: the machine's, up to 16 (more do not get more of a
/// socket's memory).
[[nodiscard]] std::uint32_t most_copy_threads();

/// Calls `work(begin, end)` for parts that make up [0, size), and returns when all are through.
/// Parts begin at multiples of `grain`, which is worth a thread: less runs on the calling one.
/// `work` does not throw.
void for_each_part(std::uint64_t size, std::uint64_t grain,
                   const std::function<void(std::uint64_t, std::uint64_t)>& work);

}  // namespace kvferry::bench
