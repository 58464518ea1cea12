// SPDX-License-Identifier: Apache-2.0
#include "trace/trace.hpp"

#include "kvferry/base/mixed_bits.hpp"

#include <algorithm>
#include <utility>

namespace kvferry::bench::trace {

std::size_t Trace::add_blocks(std::vector<std::uint32_t> blocks) {
  for (const std::uint32_t block : blocks) num_distinct_ = std::max(num_distinct_, block + 1);
  blocks_.push_back(std::move(blocks));
  return blocks_.size() - 1;
}

void Trace::add_request(std::span<const std::uint32_t> blocks,
                        std::optional<std::uint64_t> num_tokens) {
  std::vector<std::uint32_t>& all = blocks_.front();
  const std::size_t begin = all.size();
  all.insert(all.end(), blocks.begin(), blocks.end());
  for (const std::uint32_t block : blocks) num_distinct_ = std::max(num_distinct_, block + 1);
  add_request(0, begin, blocks.size(), num_tokens);
}

void Trace::add_request(std::size_t which, std::size_t begin, std::size_t count,
                        std::optional<std::uint64_t> num_tokens) {
  places_.push_back({static_cast<std::uint32_t>(which), static_cast<std::uint32_t>(count), begin});
  num_accesses_ += count;
  const std::uint64_t of_blocks = count * block_tokens_;
  num_tokens_.push_back(num_tokens.value_or(of_blocks));
  num_tokens_total_ += num_tokens_.back();
  // A trace may leave out the partial block at the end of a prompt, or count it as a block.
  const std::uint64_t difference =
      std::max(num_tokens_.back(), of_blocks) - std::min(num_tokens_.back(), of_blocks);
  if (difference >= block_tokens_) ++num_misfits_;
}

std::uint64_t Trace::prefix_tokens(std::size_t index, std::uint64_t num_blocks) const {
  return std::min(num_blocks * block_tokens_, num_tokens_[index]);
}

Trace Trace::sampled(double share) const {
  constexpr std::uint32_t kUnseen = 0xffffffff;
  Trace sample(name_, block_tokens_);
  std::vector<std::uint32_t> numbers(num_distinct_, kUnseen);
  std::uint32_t next = 0;
  std::vector<std::uint32_t> blocks;
  for (std::size_t i = 0; i < num_requests(); ++i) {
    blocks.clear();
    for (const std::uint32_t block : request(i)) {
      const std::uint64_t bits = mixed_bits(block * 0x9e3779b97f4a7c15ULL + 1) >> 11;
      if (static_cast<double>(bits) * 0x1p-53 >= share) continue;
      if (numbers[block] == kUnseen) numbers[block] = next++;
      blocks.push_back(numbers[block]);
    }
    if (!blocks.empty()) sample.add_request(blocks);
  }
  return sample;
}

}  // namespace kvferry::bench::trace
