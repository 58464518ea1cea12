// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvferry::bench::trace {

/// Tokens of a block in Mooncake's traces, and in synthetic traffic.
inline constexpr std::uint32_t kMooncakeBlockTokens = 512;

/// A list of requests, with the blocks that each needs, in order. A block is a number below
/// `num_distinct`. Requests with the same beginning have the same first blocks.
class Trace {
 public:
  explicit Trace(std::string name, std::uint32_t block_tokens = kMooncakeBlockTokens)
      : name_(std::move(name)), block_tokens_(block_tokens) {}

  /// `num_tokens`: tokens of the prompt; by default those of all its blocks.
  void add_request(std::span<const std::uint32_t> blocks,
                   std::optional<std::uint64_t> num_tokens = std::nullopt);

  /// Adds blocks for later requests, and returns their place. So a trace is never in memory twice.
  std::size_t add_blocks(std::vector<std::uint32_t> blocks);
  /// Adds a request for `count` of those blocks, starting at `begin`.
  void add_request(std::size_t which, std::size_t begin, std::size_t count,
                   std::optional<std::uint64_t> num_tokens);

  [[nodiscard]] std::span<const std::uint32_t> request(std::size_t index) const {
    const Place& place = places_[index];
    return std::span(blocks_[place.which]).subspan(place.begin, place.count);
  }
  /// Tokens of a request's first `num_blocks` blocks: the last block of a prompt may be partial.
  [[nodiscard]] std::uint64_t prefix_tokens(std::size_t index, std::uint64_t num_blocks) const;
  /// Tokens of a request's prompt.
  [[nodiscard]] std::uint64_t prompt_tokens(std::size_t index) const { return num_tokens_[index]; }
  /// Number of blocks of all requests together.
  [[nodiscard]] std::uint64_t num_accesses() const { return num_accesses_; }
  [[nodiscard]] std::size_t num_requests() const { return num_tokens_.size(); }
  [[nodiscard]] std::uint32_t num_distinct() const { return num_distinct_; }
  [[nodiscard]] std::uint64_t num_tokens() const { return num_tokens_total_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::uint32_t block_tokens() const { return block_tokens_; }
  /// Number of requests whose blocks do not fit their tokens: a sign that `block_tokens` is wrong
  /// for the trace.
  [[nodiscard]] std::size_t num_misfits() const { return num_misfits_; }

  /// The accesses to a random share of the blocks. A tier with the same share of the slots loads
  /// about the same share of them (Waldspurger, Park, Garthwaite, Ahmad, FAST 2015).
  [[nodiscard]] Trace sampled(double share) const;

 private:
  std::string name_;
  std::uint32_t block_tokens_;
  struct Place {
    std::uint32_t which;
    std::uint32_t count;
    std::size_t begin;
  };
  /// The first blocks belong to requests that were added with their blocks.
  std::vector<std::vector<std::uint32_t>> blocks_{1};
  std::vector<Place> places_;
  std::uint64_t num_accesses_ = 0;
  std::vector<std::uint64_t> num_tokens_;
  std::uint64_t num_tokens_total_ = 0;
  std::uint32_t num_distinct_ = 0;
  std::size_t num_misfits_ = 0;
};

}  // namespace kvferry::bench::trace
