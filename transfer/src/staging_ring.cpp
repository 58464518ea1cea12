// SPDX-License-Identifier: Apache-2.0
#include "kvferry/transfer/staging_ring.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/base/graveyard.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace kvferry::transfer {
namespace {

std::uint64_t aligned_up(std::uint64_t offset) {
  constexpr std::uint64_t kMask = StagingRing::kAlignmentBytes - 1;
  return (offset + kMask) & ~kMask;
}

}  // namespace

StagingRing::StagingRing(gpu::Device& device, std::uint64_t bytes)
    : device_(device), size_bytes_(bytes) {
  take_memory();
}

StagingRing::~StagingRing() { give_memory_back(); }

void StagingRing::take_memory() {
  if (size_bytes_ == 0 || has_memory()) return;
  std::unique_ptr<gpu::DeviceBuffer> buffer = device_.allocate(size_bytes_);
  MutexLock lock(mutex_);
  buffer_ = std::move(buffer);
}

bool StagingRing::give_memory_back() {
  std::unique_ptr<gpu::DeviceBuffer> buffer;  // It is freed after the lock is released.
  MutexLock lock(mutex_);
  const auto taken = std::count_if(spans_.begin(), spans_.end(),
                                   [](const Span& span) { return span.use == Use::kTaken; });
  KVFERRY_CHECK(taken == 0,
                "a staging ring frees its memory with " + std::to_string(taken) + " regions taken");
  buffer = std::move(buffer_);
  if (spans_.empty()) return true;
  // A launch may still write this memory.
  bury(std::move(buffer));
  first_ticket_ += spans_.size();
  spans_.clear();
  used_bytes_ = 0;
  head_ = 0;
  return false;
}

bool StagingRing::has_memory() const {
  MutexLock lock(mutex_);
  return buffer_ != nullptr;
}

RingRegion StagingRing::allocate(std::uint64_t entry_bytes, std::uint32_t max_entries) {
  KVFERRY_CHECK(entry_bytes != 0, "ring entries of 0 bytes");
  if (max_entries == 0) return {};
  MutexLock lock(mutex_);
  if (buffer_ == nullptr) return {};
  // A region never wraps: it lies either between the head and the ring's end (or the oldest region,
  // once the used part has wrapped), or, if no entry fits there, at the ring's start.
  const bool wrapped = used_bytes_ > head_;
  const std::uint64_t tail = wrapped ? head_ + (size_bytes_ - used_bytes_) : head_ - used_bytes_;
  const auto room = [](std::uint64_t start, std::uint64_t end) {
    return end > start ? end - start : 0;
  };
  std::uint64_t start = aligned_up(head_);
  std::uint64_t limit = wrapped ? tail : size_bytes_;
  std::uint64_t skipped = start - head_;
  if (room(start, limit) < entry_bytes) {
    if (wrapped || tail < entry_bytes) return {};
    skipped = size_bytes_ - head_;
    start = 0;
    limit = tail;
  }
  const std::uint64_t fits = (limit - start) / entry_bytes;
  const auto num_entries = static_cast<std::uint32_t>(std::min<std::uint64_t>(fits, max_entries));
  const std::uint64_t bytes = num_entries * entry_bytes;
  head_ = start + bytes;
  used_bytes_ += skipped + bytes;
  spans_.push_back({.bytes = skipped + bytes});
  return {.ticket = first_ticket_ + spans_.size() - 1,
          .address = buffer_->address() + start,
          .offset = start,
          .entry_bytes = entry_bytes,
          .num_entries = num_entries};
}

void StagingRing::release(std::uint64_t ticket) { leave(ticket, Use::kReleased); }

void StagingRing::quarantine(std::uint64_t ticket) { leave(ticket, Use::kQuarantined); }

void StagingRing::leave(std::uint64_t ticket, Use use) {
  MutexLock lock(mutex_);
  const std::uint64_t index =
      ticket - first_ticket_;  // A ticket below the oldest wraps to a large number.
  KVFERRY_CHECK(index < spans_.size() && spans_[index].use == Use::kTaken,
                "release of ring ticket " + std::to_string(ticket) + "; tickets in use are [" +
                    std::to_string(first_ticket_) + ", " +
                    std::to_string(first_ticket_ + spans_.size()) + ")");
  spans_[index].use = use;
  while (!spans_.empty() && spans_.front().use == Use::kReleased) {
    used_bytes_ -= spans_.front().bytes;
    spans_.pop_front();
    ++first_ticket_;
  }
  // An empty ring starts over, so that the next region finds all of it contiguous.
  if (spans_.empty()) head_ = 0;
}

std::uint64_t StagingRing::used_bytes() const {
  MutexLock lock(mutex_);
  return used_bytes_;
}

}  // namespace kvferry::transfer
