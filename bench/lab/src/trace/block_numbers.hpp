// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kvferry::bench::trace {

/// Numbers ids from 0, in the order in which they appear.
class BlockNumbers {
 public:
  /// The numbers of one request's ids, each once. Valid until the next call.
  std::span<const std::uint32_t> of_request(std::span<const std::uint64_t> ids) {
    blocks_.clear();
    ++request_;
    for (const std::uint64_t id : ids) {
      const auto [found, is_new] = numbers_.emplace(id, next_);
      if (is_new) {
        ++next_;
        last_request_.push_back(0);
      }
      if (std::exchange(last_request_[found->second], request_) != request_) {
        blocks_.push_back(found->second);
      }
    }
    return blocks_;
  }
  /// From now on, the same ids name other blocks.
  void forget_ids() { numbers_.clear(); }

 private:
  std::unordered_map<std::uint64_t, std::uint32_t> numbers_;
  std::uint32_t next_ = 0;
  std::size_t request_ = 0;
  std::vector<std::size_t> last_request_;  ///< By block: the last request that named it, from 1.
  std::vector<std::uint32_t> blocks_;
};

}  // namespace kvferry::bench::trace
