// SPDX-License-Identifier: Apache-2.0
#include "trace/trace.hpp"

#include <algorithm>

namespace kvferry::bench::trace {

void Trace::add_request(std::span<const std::uint32_t> blocks,
                        std::optional<std::uint64_t> num_tokens) {
  blocks_.insert(blocks_.end(), blocks.begin(), blocks.end());
  begins_.push_back(blocks_.size());
  for (const std::uint32_t block : blocks) num_distinct_ = std::max(num_distinct_, block + 1);
  const std::uint64_t of_blocks = blocks.size() * block_tokens_;
  num_tokens_.push_back(num_tokens.value_or(of_blocks));
  num_tokens_total_ += num_tokens_.back();
  // A trace may leave the partial block at a prompt's end out, or count it as one.
  const std::uint64_t difference =
      std::max(num_tokens_.back(), of_blocks) - std::min(num_tokens_.back(), of_blocks);
  if (difference >= block_tokens_) ++num_misfits_;
}

std::uint64_t Trace::prefix_tokens(std::size_t index, std::uint64_t num_blocks) const {
  return std::min(num_blocks * block_tokens_, num_tokens_[index]);
}

}  // namespace kvferry::bench::trace
