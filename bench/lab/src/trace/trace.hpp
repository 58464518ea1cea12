// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvferry::bench::trace {

/// Tokens of a block in Mooncake's traces, and of made-up traffic.
inline constexpr std::uint32_t kMooncakeBlockTokens = 512;

/// The blocks that each of a list of requests needs, in order. A block is a number below
/// `num_distinct`; requests that begin alike have the same ones.
class Trace {
 public:
  explicit Trace(std::string name, std::uint32_t block_tokens = kMooncakeBlockTokens)
      : name_(std::move(name)), block_tokens_(block_tokens) {}

  /// `num_tokens`: of the prompt; all of its blocks' unless given.
  void add_request(std::span<const std::uint32_t> blocks,
                   std::optional<std::uint64_t> num_tokens = std::nullopt);

  [[nodiscard]] std::span<const std::uint32_t> request(std::size_t index) const {
    return std::span(blocks_).subspan(begins_[index], begins_[index + 1] - begins_[index]);
  }
  /// Tokens of a request's first `num_blocks` blocks: the last block of a prompt may be partial.
  [[nodiscard]] std::uint64_t prefix_tokens(std::size_t index, std::uint64_t num_blocks) const;
  /// Of all requests, one behind the other.
  [[nodiscard]] std::span<const std::uint32_t> blocks() const { return blocks_; }
  [[nodiscard]] std::size_t num_requests() const { return num_tokens_.size(); }
  [[nodiscard]] std::uint32_t num_distinct() const { return num_distinct_; }
  [[nodiscard]] std::uint64_t num_tokens() const { return num_tokens_total_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::uint32_t block_tokens() const { return block_tokens_; }
  /// Requests whose blocks are more or fewer than their tokens make: a sign that `block_tokens` is
  /// not the trace's.
  [[nodiscard]] std::size_t num_misfits() const { return num_misfits_; }

 private:
  std::string name_;
  std::uint32_t block_tokens_;
  std::vector<std::uint32_t> blocks_;
  std::vector<std::size_t> begins_{0};
  std::vector<std::uint64_t> num_tokens_;
  std::uint64_t num_tokens_total_ = 0;
  std::uint32_t num_distinct_ = 0;
  std::size_t num_misfits_ = 0;
};

}  // namespace kvferry::bench::trace
