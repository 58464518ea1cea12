// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/memory/arena_source.hpp"
#include "kvferry/cpu_tier/memory/shared_file.hpp"

#include "replica_board.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string_view>

namespace kvferry::cpu_tier {

/// The single memory of a replica group. The first member makes it, the others join, and all map
/// its files. The pieces of one home become resident in order.
class GroupSource final : public ArenaSource {
 public:
  /// For a group with other members.
  explicit GroupSource(const ReplicaGroup& group) : group_(group) {}

  [[nodiscard]] ArenaGrant grant(const ArenaShape& asked, const ArenaOptions& options) override;
  [[nodiscard]] std::unique_ptr<HostMapping> map() override;
  [[nodiscard]] std::unique_ptr<HostMapping> map_tags(const ArenaShape& granted) override;
  /// Populates this member's pieces, waits for the others' pieces, and maps all of them.
  [[nodiscard]] std::optional<std::chrono::nanoseconds> make_resident(
      ArenaPages& pages, ChunkRange chunks, const std::stop_token& stop) override;
  [[nodiscard]] bool can_give_back() const override {
    return board_->offer().pages != PageKind::kPool;
  }
  void give_back(ArenaPages& pages, ChunkRange chunks) noexcept override;
  void release(ArenaPages& pages, ChunkRange chunks) noexcept override {
    pages.mapping().release(pages.bytes_of(chunks));
  }
  [[nodiscard]] bool make_resident_again(ArenaPages& pages, ChunkRange chunks,
                                         const std::stop_token& stop) override;
  void end(std::string_view why) noexcept override { board_->end(why); }
  void withdraw() noexcept override { board_->withdraw(); }

 private:
  /// Makes the first member's memory. Other members find it only after it is mapped.
  [[nodiscard]] ArenaGrant make(const ArenaShape& asked, const ArenaOptions& options);
  [[nodiscard]] ArenaGrant join(const ArenaShape& asked, const ArenaOptions& options);

  [[nodiscard]] bool is_resident(PieceId piece) const {
    return board_->num_resident(group_.home_of(piece)) > number_at_home(piece);
  }
  /// How many pieces of its home come before it.
  [[nodiscard]] std::uint32_t number_at_home(PieceId piece) const {
    return piece.value() / group_.size;
  }
  /// Populates a piece of this member, whose earlier pieces are all resident. Returns false if it
  /// was stopped.
  [[nodiscard]] bool populate_own_piece(ArenaPages& pages, PieceId piece,
                                        const std::stop_token& stop);
  /// Waits for another home's piece; returns false if it was stopped. The group's patience limits
  /// the wait if the home has not joined yet or the wait cannot be stopped. Throws ResourceError if
  /// the home has ended or its process is gone, and TimeoutError.
  [[nodiscard]] bool wait_for(PieceId piece, const std::stop_token& stop) const;

  const ReplicaGroup group_;
  std::uint64_t chunk_bytes_ = 0;
  std::optional<SharedFile> file_;
  /// The file of the tags, which any member makes resident.
  std::optional<SharedFile> tag_file_;
  std::unique_ptr<ReplicaBoard> board_;
};

}  // namespace kvferry::cpu_tier
