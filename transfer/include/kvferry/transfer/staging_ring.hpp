// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/mutex.hpp"
#include "kvferry/gpu/device.hpp"

#include <cstdint>
#include <deque>
#include <memory>

namespace kvferry::transfer {

/// A region of the staging ring's device memory with packed blocks, one after the other.
struct RingRegion {
  std::uint64_t ticket = 0;  ///< Names the region when it is released; 0: nothing was taken.
  std::uintptr_t address = 0;
  std::uint64_t offset = 0;  ///< Distance of the address from the ring's start.
  std::uint64_t entry_bytes = 0;
  std::uint32_t num_entries = 0;
};

/// The device memory that holds blocks between gather and copy. Regions are taken in ring order and
/// can be released in any order; their space is free again when all older regions were released
/// too. Thread-safe. The owner quiesces before it destroys the ring: a region that is neither
/// released nor quarantined at that moment is a broken invariant.
class StagingRing {
 public:
  /// Regions start at multiples of this, as vector accesses and bulk copies of a gather kernel
  /// need. The padding counts as used.
  static constexpr std::uint64_t kAlignmentBytes = 16;

  /// take_memory().
  StagingRing(gpu::Device& device, std::uint64_t bytes);
  /// give_memory_back().
  ~StagingRing();
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;

  /// Allocates the ring's device memory, unless it has it already or its size is 0. Throws
  /// ResourceError.
  void take_memory();
  /// Frees the memory. If part of it is quarantined, it is kept until the process ends instead, and
  /// the result is false. Nothing fits until take_memory(). A region that is still taken is a
  /// broken invariant.
  bool give_memory_back();

  /// Takes up to `max_entries` contiguous entries of `entry_bytes`: as many as fit before the used
  /// part or the ring's end, so filling the ring can take two calls. If nothing fits, `num_entries`
  /// and the ticket are 0.
  [[nodiscard]] RingRegion allocate(std::uint64_t entry_bytes, std::uint32_t max_entries);
  /// Releases a region whose gather and copies have all ended. An unknown ticket is a broken
  /// invariant.
  void release(std::uint64_t ticket);
  /// Takes a region out of use permanently, because nothing can prove that its gather ended. Space
  /// of older regions becomes free again; space of newer ones does not.
  void quarantine(std::uint64_t ticket);

  /// The size that the ring was constructed with.
  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }
  /// Bytes of all regions whose space is not free yet, padding included.
  [[nodiscard]] std::uint64_t used_bytes() const;

 private:
  enum class Use : std::uint8_t { kTaken, kReleased, kQuarantined };
  struct Span {
    std::uint64_t bytes = 0;  ///< With the padding before it.
    Use use = Use::kTaken;
  };

  void leave(std::uint64_t ticket, Use use);
  [[nodiscard]] bool has_memory() const;

  gpu::Device& device_;
  const std::uint64_t size_bytes_;
  mutable Mutex mutex_;
  /// Null if nothing fits.
  std::unique_ptr<gpu::DeviceBuffer> buffer_ KVFERRY_GUARDED_BY(mutex_);
  /// Oldest first; their tickets are consecutive.
  std::deque<Span> spans_ KVFERRY_GUARDED_BY(mutex_);
  std::uint64_t first_ticket_ KVFERRY_GUARDED_BY(mutex_) = 1;
  /// Where the next region may start.
  std::uint64_t head_ KVFERRY_GUARDED_BY(mutex_) = 0;
  std::uint64_t used_bytes_ KVFERRY_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvferry::transfer
