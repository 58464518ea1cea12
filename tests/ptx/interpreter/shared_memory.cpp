// SPDX-License-Identifier: Apache-2.0
#include "interpreter/shared_memory.hpp"

#include "interpreter/fault.hpp"
#include "interpreter/kernel.hpp"

#include <algorithm>
#include <string>

namespace kvferry::ptx {
namespace {

constexpr std::uint32_t kBarrierBytes = 8;
// What nothing wrote is no zero.
constexpr std::uint8_t kNeverWritten = 0xcd;

}  // namespace

SharedMemory::SharedMemory(std::uint32_t bytes)
    : bytes_(bytes, kNeverWritten), granules_((bytes + kGranuleBytes - 1) / kGranuleBytes) {}

void SharedMemory::check_bounds(std::uint32_t address, std::uint32_t bytes) const {
  if (address < kSharedAddress || bytes > bytes_.size() ||
      address - kSharedAddress > bytes_.size() - bytes) {
    throw Fault(Hazard::kBounds, std::to_string(bytes) + " bytes at " + std::to_string(address) +
                                     " are outside of dynamic shared memory, " +
                                     std::to_string(bytes_.size()) + " bytes at " +
                                     std::to_string(kSharedAddress));
  }
}

std::span<SharedMemory::Granule> SharedMemory::granules(std::uint32_t address,
                                                        std::uint32_t bytes) {
  check_bounds(address, bytes);
  const std::uint32_t offset = address - kSharedAddress;
  const std::uint32_t first = offset / kGranuleBytes;
  const std::uint32_t last = (offset + bytes - 1) / kGranuleBytes;
  return std::span(granules_).subspan(first, last - first + 1);
}

void SharedMemory::place_barrier(std::uint32_t address) {
  if (address % kBarrierBytes != 0) {
    throw Fault(Hazard::kAlignment, "an mbarrier at " + std::to_string(address));
  }
  for (Granule& granule : granules(address, kBarrierBytes)) {
    if (granule.content == Content::kLoad) {
      throw Fault(Hazard::kBarrier, "an mbarrier where a bulk load put its bytes");
    }
    granule.content = Content::kBarrier;
  }
}

void SharedMemory::begin_load(std::uint32_t address, std::uint32_t bytes, const Arrival& arrival,
                              const Knowledge& known) {
  for (Granule& granule : granules(address, bytes)) {
    if (granule.content == Content::kBarrier) {
      throw Fault(Hazard::kBarrier, "a bulk load overwrites an mbarrier");
    }
    if (granule.content == Content::kLoad &&
        !known.knows_complete(granule.arrival.barrier, granule.arrival.phase)) {
      throw Fault(Hazard::kWriteBeforeRead, "a bulk load overwrites one that may still arrive");
    }
    for (const Reader& reader : granule.readers) {
      if (known.knows_read(reader.lane, reader.group)) continue;
      throw Fault(Hazard::kWriteBeforeRead, "a bulk load overwrites what a bulk store of lane " +
                                                std::to_string(reader.lane) + " may still read");
    }
    granule.content = Content::kLoad;
    granule.arrival = arrival;
    granule.readers.clear();
  }
}

void SharedMemory::begin_store(std::uint32_t address, std::uint32_t bytes, const Reader& reader,
                               const Knowledge& known) {
  for (Granule& granule : granules(address, bytes)) {
    if (granule.content != Content::kLoad) {
      throw Fault(Hazard::kReadBeforeWrite, "a bulk store of bytes that nothing loaded");
    }
    if (!known.knows_complete(granule.arrival.barrier, granule.arrival.phase)) {
      throw Fault(Hazard::kReadBeforeWrite,
                  "a bulk store of bytes that its lane has not seen arrive");
    }
    granule.readers.push_back(reader);
  }
}

std::span<std::uint8_t> SharedMemory::bytes(std::uint32_t address, std::size_t bytes) {
  return std::span(bytes_).subspan(address - kSharedAddress, bytes);
}

}  // namespace kvferry::ptx
