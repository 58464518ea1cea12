// SPDX-License-Identifier: Apache-2.0
#include "interpreter/copy_unit.hpp"

#include <algorithm>
#include <utility>

namespace kvferry::ptx {

void CopyUnit::load(std::uint64_t from, std::uint32_t to, std::uint32_t bytes,
                    const SharedMemory::Arrival& arrival) {
  copies_.push_back({true, from, to, bytes, arrival, {}, {}});
}

void CopyUnit::store(std::uint32_t from, std::uint64_t to, std::uint32_t bytes,
                     const SharedMemory::Reader& reader) {
  copies_.push_back({false, to, from, bytes, {}, reader, {}});
}

void CopyUnit::advance(Random& random) {
  Copy& copy = copies_[random() % copies_.size()];
  if (!(copy.is_load ? advance_load(copy, random) : advance_store(copy))) return;
  std::swap(copy, copies_.back());
  copies_.pop_back();
}

bool CopyUnit::advance_load(Copy& copy, Random& random) {
  constexpr std::uint32_t kStep = SharedMemory::kGranuleBytes;
  const auto some =
      static_cast<std::uint32_t>(kStep * (1 + random() % (copy.num_bytes_left / kStep)));
  // Most copies come whole: so the tests see many of them.
  const std::uint32_t part = random() % 4 == 0 ? some : copy.num_bytes_left;
  const auto from = global_.read(copy.global, part);
  std::copy(from.begin(), from.end(), shared_.bytes(copy.shared, part).begin());
  barriers_.at(copy.arrival.barrier).complete(part);
  copy.global += part;
  copy.shared += part;
  copy.num_bytes_left -= part;
  return copy.num_bytes_left == 0;
}

bool CopyUnit::advance_store(Copy& copy) {
  BulkGroups& groups = lanes_[copy.reader.lane].groups;
  if (copy.held.empty()) {
    const auto from = shared_.bytes(copy.shared, copy.num_bytes_left);
    copy.held.assign(from.begin(), from.end());
    groups.store_read(copy.reader.group);
    return false;
  }
  global_.write(copy.global, copy.held);
  groups.store_written(copy.reader.group);
  return true;
}

}  // namespace kvferry::ptx
