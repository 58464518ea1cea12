// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

namespace kvferry::bench {

/// The number of threads that copy fastest together: the machine's processors, up to 16 (more
/// threads do not get more of a socket's memory bandwidth).
[[nodiscard]] std::uint32_t most_copy_threads();

/// Calls `work(begin, end)` for parts that make up [0, size), and returns when all have ended.
/// Parts begin at multiples of `grain`, the least that is worth a thread; less runs on the calling
/// thread. `work` does not throw.
void for_each_part(std::uint64_t size, std::uint64_t grain,
                   const std::function<void(std::uint64_t, std::uint64_t)>& work);

}  // namespace kvferry::bench
