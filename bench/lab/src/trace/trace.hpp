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

  /// Blocks that requests to come lie in; returns which these are. A trace is never twice in
  /// memory.
  std::size_t add_blocks(std::vector<std::uint32_t> blocks);
  /// A request for `count` of those blocks from `begin` on.
  void add_request(std::size_t which, std::size_t begin, std::size_t count,
                   std::optional<std::uint64_t> num_tokens);

  [[nodiscard]] std::span<const std::uint32_t> request(std::size_t index) const {
    const Place& place = places_[index];
    return std::span(blocks_[place.which]).subspan(place.begin, place.count);
  }
  /// Tokens of a request's first `num_blocks` blocks: the last block of a prompt may be partial.
  [[nodiscard]] std::uint64_t prefix_tokens(std::size_t index, std::uint64_t num_blocks) const;
  /// Blocks of all requests together.
  [[nodiscard]] std::uint64_t num_accesses() const { return num_accesses_; }
  [[nodiscard]] std::size_t num_requests() const { return num_tokens_.size(); }
  [[nodiscard]] std::uint32_t num_distinct() const { return num_distinct_; }
  [[nodiscard]] std::uint64_t num_tokens() const { return num_tokens_total_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::uint32_t block_tokens() const { return block_tokens_; }
  /// Requests whose blocks are more or fewer than their tokens make: a sign that `block_tokens` is
  /// not the trace's.
  [[nodiscard]] std::size_t num_misfits() const { return num_misfits_; }

  /// The accesses to a share of the blocks, chosen at random. A tier of the same share of the slots
  /// loads about the same share of them (Waldspurger, Park, Garthwaite, Ahmad, FAST 2015).
  [[nodiscard]] Trace sampled(double share) const;

 private:
  std::string name_;
  std::uint32_t block_tokens_;
  struct Place {
    std::uint32_t which;
    std::uint32_t count;
    std::size_t begin;
  };
  /// The first ones are of requests that were added with their blocks.
  std::vector<std::vector<std::uint32_t>> blocks_{1};
  std::vector<Place> places_;
  std::uint64_t num_accesses_ = 0;
  std::vector<std::uint64_t> num_tokens_;
  std::uint64_t num_tokens_total_ = 0;
  std::uint32_t num_distinct_ = 0;
  std::size_t num_misfits_ = 0;
};

}  // namespace kvferry::bench::trace
