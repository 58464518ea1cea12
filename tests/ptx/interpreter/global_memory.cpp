// SPDX-License-Identifier: Apache-2.0
#include "interpreter/global_memory.hpp"

#include "kvferry/base/check.hpp"

#include "interpreter/fault.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

namespace kvferry::ptx {
namespace {

std::string described(std::uint64_t address, std::size_t bytes) {
  std::array<char, 64> text;
  std::snprintf(text.data(), text.size(), "%zu bytes at 0x%llx", bytes,
                static_cast<unsigned long long>(address));
  return text.data();
}

/// What a range is for, that was touched in another way.
const char* purpose_of(Access access) {
  switch (access) {
    case Access::kRead:
      return " are a source, and written";
    case Access::kWrite:
      return " are the destination, and read";
    case Access::kAdd:
      break;
  }
  return " are a sum, and not added to in one step";
}

}  // namespace

void GlobalMemory::map(std::uint64_t address, Access access, std::vector<std::uint8_t> bytes) {
  const auto next = std::lower_bound(
      ranges_.begin(), ranges_.end(), address,
      [](const Range& range, std::uint64_t begin) { return range.address < begin; });
  const std::uint64_t end = address + bytes.size();
  KVFERRY_CHECK((next == ranges_.end() || end <= next->address) &&
                    (next == ranges_.begin() || std::prev(next)->end() <= address),
                "ranges of device memory overlap: " + described(address, bytes.size()));
  std::vector<bool> written(access == Access::kWrite ? bytes.size() : 0);
  ranges_.insert(next, {address, access, std::move(bytes), std::move(written)});
}

std::size_t GlobalMemory::find(std::uint64_t address, std::size_t bytes) const {
  const auto after =
      std::upper_bound(ranges_.begin(), ranges_.end(), address,
                       [](std::uint64_t at, const Range& range) { return at < range.address; });
  if (after == ranges_.begin()) return ranges_.size();
  const auto range = std::prev(after);
  const bool holds = address < range->end() && bytes <= range->end() - address;
  return holds ? static_cast<std::size_t>(range - ranges_.begin()) : ranges_.size();
}

std::size_t GlobalMemory::check(std::uint64_t address, std::size_t bytes, Access access) const {
  const std::size_t found = find(address, bytes);
  if (found == ranges_.size()) {
    throw Fault(Hazard::kBounds, described(address, bytes) + " are not within one range");
  }
  if (ranges_[found].access != access) {
    throw Fault(Hazard::kBounds, described(address, bytes) + purpose_of(ranges_[found].access));
  }
  return found;
}

std::span<const std::uint8_t> GlobalMemory::read(std::uint64_t address, std::size_t bytes) const {
  const Range& range = ranges_[check(address, bytes, Access::kRead)];
  return std::span(range.bytes).subspan(address - range.address, bytes);
}

void GlobalMemory::write(std::uint64_t address, std::span<const std::uint8_t> bytes) {
  Range& range = ranges_[check(address, bytes.size(), Access::kWrite)];
  const std::uint64_t offset = address - range.address;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (range.written[offset + i]) {
      throw Fault(Hazard::kWrittenTwice, described(address + i, 1) + " were written before");
    }
    range.written[offset + i] = true;
  }
  std::copy(bytes.begin(), bytes.end(), range.bytes.begin() + static_cast<std::ptrdiff_t>(offset));
}

void GlobalMemory::add(std::uint64_t address, std::uint64_t value) {
  Range& range = ranges_[check(address, sizeof(value), Access::kAdd)];
  std::uint8_t* const at = range.bytes.data() + (address - range.address);
  std::uint64_t sum = 0;
  std::memcpy(&sum, at, sizeof(sum));
  sum += value;
  std::memcpy(at, &sum, sizeof(sum));
}

std::uint8_t* GlobalMemory::host_address(std::uint64_t address, std::size_t bytes) {
  const std::size_t found = find(address, bytes);
  if (found == ranges_.size()) return nullptr;
  return ranges_[found].bytes.data() + (address - ranges_[found].address);
}

}  // namespace kvferry::ptx
