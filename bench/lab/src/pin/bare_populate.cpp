// SPDX-License-Identifier: Apache-2.0
#include "pin/bare_populate.hpp"

#include "kvferry/cpu_tier/memory/host_mapping.hpp"

#include <algorithm>
#include <sys/mman.h>
#include <thread>
#include <vector>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14, asm-generic/mman-common.h.
#endif

namespace kvferry::bench {
namespace {

void populate_part(std::span<std::byte> part) {
  // This needs no fault for every page.
  if (::madvise(part.data(), part.size(), MADV_POPULATE_WRITE) == 0) return;
  volatile std::byte* const bytes = part.data();
  const std::uint64_t step = cpu_tier::HostMapping::page_bytes();
  for (std::uint64_t at = 0; at < part.size(); at += step) bytes[at] = std::byte{0};
}

}  // namespace

void bare_populate(std::span<std::byte> memory, std::uint32_t threads) {
  // Parts end at the ends of huge pages, so that two threads never fault in the same one.
  const std::uint64_t huge_page = cpu_tier::huge_page_bytes();
  const std::uint64_t share = (memory.size() + threads - 1) / threads;
  const std::uint64_t part = (share + huge_page - 1) / huge_page * huge_page;
  std::vector<std::jthread> others;
  for (std::uint64_t at = part; at < memory.size(); at += part) {
    others.emplace_back(populate_part, memory.subspan(at, std::min(part, memory.size() - at)));
  }
  populate_part(memory.first(std::min<std::uint64_t>(part, memory.size())));
}

}  // namespace kvferry::bench
