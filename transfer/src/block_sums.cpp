// SPDX-License-Identifier: Apache-2.0
#include "block_sums.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/base/error.hpp"
#include "kvferry/base/graveyard.hpp"

#include <cstdlib>
#include <string>
#include <utility>

namespace kvferry::transfer {
namespace {

constexpr std::uint64_t kWordBytes = sizeof(std::uint64_t);
// Drivers register whole pages.
constexpr std::uint64_t kPageBytes = 4096;

std::uint64_t whole_pages(std::uint64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

}  // namespace

struct BlockSums::Memory {
  struct FreeHost {
    void operator()(std::uint64_t* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::uint64_t[], FreeHost> on_host;
  /// Declared after the words, so that the registration ends before the words are freed.
  std::unique_ptr<gpu::HostRegistration> registration;
  std::unique_ptr<gpu::DeviceBuffer> on_device;
  /// The words as blocks of one word each, for send().
  gpu::BlockGeometry words;
};

BlockSums::BlockSums(gpu::Device& device, std::uint64_t ring_bytes, std::uint64_t smallest_block,
                     std::uint32_t most_blocks)
    : device_(device),
      smallest_block_(smallest_block),
      num_ring_words_(ring_bytes / smallest_block + 1),
      most_blocks_(most_blocks) {
  take_memory();
}

BlockSums::~BlockSums() = default;

void BlockSums::take_memory() {
  if (memory_ != nullptr) return;
  const std::uint64_t num_words = num_ring_words_ + std::uint64_t{kMaxLoads} * most_blocks_;
  const std::uint64_t bytes = whole_pages(num_words * kWordBytes);
  auto memory = std::make_unique<Memory>();
  memory->on_host.reset(static_cast<std::uint64_t*>(std::aligned_alloc(kPageBytes, bytes)));
  if (memory->on_host == nullptr) {
    throw ResourceError("cannot allocate " + std::to_string(bytes) +
                        " bytes of host memory for the sums of blocks");
  }
  memory->registration = device_.register_host(memory->on_host.get(), bytes);
  memory->on_device = device_.allocate(bytes);
  memory->words = gpu::make_block_geometry({{.base = memory->on_device->address(),
                                             .block_stride_bytes = kWordBytes,
                                             .bytes = kWordBytes}},
                                           static_cast<std::uint32_t>(num_words));
  device_.prepare(memory->words);
  memory_ = std::move(memory);
  free_.clear();
  for (std::uint32_t load = kMaxLoads; load-- > 0;) free_.push_back(load);
}

void BlockSums::give_memory_back(bool is_quiet) {
  if (memory_ == nullptr) return;
  if (!is_quiet) {
    bury(std::move(memory_->on_device));
    memory_->registration.reset();
    bury(std::move(memory_->on_host));
    memory_.reset();
    return;
  }
  KVFERRY_CHECK(free_.size() == kMaxLoads, "sums of blocks must not be freed while loads use them");
  device_.forget(memory_->words);
  memory_.reset();
}

// Each block has at least as many bytes of the ring as one word stands for. So the last n words
// before an end lie at or after the start of the last n blocks before it.
SumRange BlockSums::before(std::uint64_t ring_end, std::uint32_t count) const {
  const std::uint64_t end = ring_end / smallest_block_;
  KVFERRY_DCHECK(count <= end && end <= num_ring_words_,
                 "a region extends past the end of the staging ring");
  return {end - count, count};
}

std::optional<SumRange> BlockSums::take(std::uint32_t count) {
  KVFERRY_DCHECK(count <= most_blocks_, "a load's piece has more blocks than there are sums");
  if (free_.empty()) return std::nullopt;
  const std::uint32_t load = free_.back();
  free_.pop_back();
  return SumRange{num_ring_words_ + std::uint64_t{load} * most_blocks_, count};
}

void BlockSums::give_back(const SumRange& range) {
  free_.push_back(static_cast<std::uint32_t>((range.first - num_ring_words_) / most_blocks_));
}

void BlockSums::clear(gpu::Stream& stream, const SumRange& range) const {
  stream.fill(device_address(range), 0, range.count * kWordBytes);
}

std::uintptr_t BlockSums::device_address(const SumRange& range) const {
  return memory_->on_device->address() + range.first * kWordBytes;
}

void BlockSums::send(gpu::Stream& stream, const SumRange& range) const {
  std::vector<BlockId> words;
  words.reserve(range.count);
  for (std::uint32_t i = 0; i < range.count; ++i) {
    words.emplace_back(static_cast<std::uint32_t>(range.first + i));
  }
  stream.gather(memory_->words, words,
                memory_->registration->device_address() + range.first * kWordBytes);
}

std::span<const std::uint64_t> BlockSums::arrived(const SumRange& range) const {
  return {memory_->on_host.get() + range.first, range.count};
}

}  // namespace kvferry::transfer
