// SPDX-License-Identifier: Apache-2.0
#include "measure/parallel_parts.hpp"

#include <algorithm>
#include <thread>
#include <vector>

namespace kvferry::bench {
std::uint32_t most_copy_threads() {
  return std::clamp(std::thread::hardware_concurrency(), 1U, 16U);
}

void for_each_part(std::uint64_t size, std::uint64_t grain,
                   const std::function<void(std::uint64_t, std::uint64_t)>& work) {
  const std::uint64_t num_parts = std::clamp<std::uint64_t>(size / grain, 1, most_copy_threads());
  const std::uint64_t part = (size / num_parts / grain + 1) * grain;
  std::vector<std::thread> threads;
  for (std::uint64_t begin = part; begin < size; begin += part) {
    threads.emplace_back([&, begin] { work(begin, std::min(begin + part, size)); });
  }
  work(0, std::min(part, size));
  for (std::thread& thread : threads) thread.join();
}

}  // namespace kvferry::bench
