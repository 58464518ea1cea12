// SPDX-License-Identifier: Apache-2.0
#include "registered_ranges.hpp"

#include "kvferry/base/check.hpp"

#include "range_text.hpp"

#include <iterator>
#include <limits>
#include <string>

namespace kvferry::gpu {

void RegisteredRanges::add(std::uintptr_t address, std::uint64_t bytes) {
  if (address == 0 || bytes == 0 || bytes > std::numeric_limits<std::uintptr_t>::max() - address) {
    throw DeviceError("cannot register " + range_text(address, bytes) + ": not a range of memory");
  }
  MutexLock lock(mutex_);
  const auto next = ranges_.lower_bound(address);
  auto neighbour = ranges_.end();
  if (next != ranges_.end() && next->first < address + bytes) {
    neighbour = next;
  } else if (next != ranges_.begin() && std::prev(next)->second > address) {
    neighbour = std::prev(next);
  }
  if (neighbour != ranges_.end()) {
    throw DeviceError("cannot register " + range_text(address, bytes) +
                      ": overlaps the registration of " +
                      range_text(neighbour->first, neighbour->second - neighbour->first));
  }
  ranges_.emplace_hint(next, address, address + bytes);
}

void RegisteredRanges::remove(std::uintptr_t address) {
  MutexLock lock(mutex_);
  const auto num_removed = ranges_.erase(address);
  KVFERRY_CHECK(num_removed == 1, "nothing is registered at " + range_text(address, 0));
}

void RegisteredRanges::check(CopyDirection direction, std::span<const CopyRun> runs) const {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  MutexLock lock(mutex_);
  for (const CopyRun& run : runs) {
    const std::uintptr_t host =
        direction == CopyDirection::kDeviceToHost ? run.destination : run.source;
    if (host < begin || host >= end) {
      const auto next = ranges_.upper_bound(host);
      begin = next == ranges_.begin() ? 0 : std::prev(next)->first;
      end = next == ranges_.begin() ? 0 : std::prev(next)->second;
    }
    if (host < begin || host >= end || run.bytes > end - host) {
      throw DeviceError(std::string("copy ") + to_string(direction) + ": host side, " +
                        range_text(host, run.bytes) +
                        ", is not within one registration; register the memory, or split the run "
                        "at the border");
    }
  }
}

bool RegisteredRanges::has(std::uintptr_t address) const {
  MutexLock lock(mutex_);
  const auto next = ranges_.upper_bound(address);
  return next != ranges_.begin() && address < std::prev(next)->second;
}

std::uint64_t RegisteredRanges::num_ranges() const {
  MutexLock lock(mutex_);
  return ranges_.size();
}

}  // namespace kvferry::gpu
