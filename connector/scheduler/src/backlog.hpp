// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/cpu_tier/slots/block_key.hpp"

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace kvferry::connector {

/// One block that waits for its turn to be stored.
struct BacklogEntry {
  BlockId block;
  cpu_tier::BlockKey key;
};

/// Complete blocks that could not be stored in their step: first in, first out, one entry per GPU
/// block. It holds no block. An entry says which key the block carried, and the planner that takes
/// it checks that it still does. A block that was reallocated and offered again replaces its old
/// entry in place. One thread at a time.
class Backlog {
 public:
  explicit Backlog(std::uint32_t num_blocks)
      : keys_(num_blocks), places_(num_blocks, Place::kNone) {}

  void push(BlockId block, const cpu_tier::BlockKey& key);
  /// Puts an entry back at the head, if it was taken but could not be served.
  void push_front(const BacklogEntry& entry);
  /// The block is being written anew, so its entry is void. Returns whether it had an entry.
  bool drop(BlockId block);
  /// The key of the block's last entry, if it had one.
  [[nodiscard]] const cpu_tier::BlockKey& last_key(BlockId block) const {
    return keys_[block.value()];
  }
  [[nodiscard]] std::size_t size() const { return num_entries_; }
  /// Takes the oldest entry, if there is one.
  [[nodiscard]] std::optional<BacklogEntry> pop();
  void clear();

 private:
  enum class Place : std::uint8_t {
    kNone,
    kQueued,
    kDropped
  };  // kDropped: still in queue_, to be passed over

  std::deque<BlockId> queue_;
  std::vector<cpu_tier::BlockKey> keys_;
  std::vector<Place> places_;
  std::size_t num_entries_ = 0;
};

}  // namespace kvferry::connector
