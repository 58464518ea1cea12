// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/own_descriptor.hpp"
#include "kvferry/cpu_tier/memory/huge_pages.hpp"
#include "kvferry/cpu_tier/memory/memory_budget.hpp"
#include "kvferry/cpu_tier/memory/replica_group.hpp"

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <sys/types.h>

namespace kvferry::cpu_tier {

/// What every member computes for itself. All members must agree.
struct ReplicaGeometry {
  std::uint64_t chunk_bytes = 0;
  std::uint64_t num_chunks = 0;  ///< The number of chunks that were requested.
  std::uint64_t pinned_piece_bytes = 0;
  std::uint64_t tags_per_chunk = 0;
};

/// A file without a name that the first member has open.
struct OfferedFile {
  int descriptor = -1;
  std::uint64_t inode = 0;
};

/// What the first member obtained for all members.
struct ReplicaOffer {
  std::uint32_t num_chunks = 0;
  std::uint32_t chunks_per_piece = 0;
  PageKind pages = PageKind::kNormal;
  /// The process that has the memory's files open.
  pid_t process = 0;
  OfferedFile chunks = {};
  OfferedFile tags = {};  ///< In normal pages; empty if the chunks have no tags.
};

/// The board of a replica group, on which members tell each other the geometry, where the memory
/// is, which members live, and how many of its pieces each has made resident. It is a small file in
/// shared memory that all members map. Each member holds its own lock on it (of its open file, so
/// that several members can be in one process), which ends with its process. So no member waits for
/// one that is gone, and any process removes a board whose first member is gone. Lock-free;
/// thread-safe.
class ReplicaBoard {
 public:
  enum class Standing : std::uint8_t { kNotYet, kLives, kGone };

  /// Makes the first member's board. Other members find it only after publish(). Throws
  /// ResourceError if the file cannot be created.
  ReplicaBoard(const ReplicaGroup& group, const ReplicaGeometry& geometry,
               const ReplicaOffer& offer, const MachineRoot& machine);
  /// Joins as another member. Waits for the first member's board, at most `group.patience`. Throws
  /// TimeoutError if there is none by then; TopologyError with both values if geometry or version
  /// differ, or if another process has joined as this member; and ResourceError.
  ReplicaBoard(const ReplicaGroup& group, const ReplicaGeometry& geometry,
               const MachineRoot& machine);
  /// Calls end() and, in the first member, withdraw().
  ~ReplicaBoard();
  ReplicaBoard(const ReplicaBoard&) = delete;
  ReplicaBoard& operator=(const ReplicaBoard&) = delete;

  /// Gives a new board its name, atomically. Throws TopologyError if a living group has the name.
  void publish();
  /// Declares that all members have joined, so no other process needs to find the board.
  /// Idempotent.
  void withdraw() noexcept;

  [[nodiscard]] const ReplicaOffer& offer() const { return offer_; }
  [[nodiscard]] Standing standing(std::uint32_t member) const;
  /// This member has made this many of its pieces resident, in order. A process that reads
  /// num_resident() afterwards sees what this member wrote into the pieces before.
  void set_resident(std::uint32_t num_pieces) noexcept;
  [[nodiscard]] std::uint32_t num_resident(std::uint32_t member) const;
  /// This member makes no more pieces resident. The first reason is kept.
  void end(std::string_view why) noexcept;
  /// Why that member has ended; empty if it has not.
  [[nodiscard]] std::string why_ended(std::uint32_t member) const;
  /// "member 1 of 4 (process 123)"
  [[nodiscard]] std::string text_of(std::uint32_t member) const;
  [[nodiscard]] const ReplicaGroup& group() const { return group_; }

 private:
  struct Page;
  struct Member;
  /// Returns false if there is no board of a living group yet.
  [[nodiscard]] bool open_published();
  /// Takes over the first member's offer if it has the same geometry.
  void take_offer(const ReplicaGeometry& geometry);
  void map(std::uint64_t bytes);
  [[nodiscard]] bool lock_own();
  void enter();
  [[nodiscard]] Member& member(std::uint32_t index) const;

  const ReplicaGroup group_;
  const std::filesystem::path path_;
  ReplicaOffer offer_;
  /// This member's lock ends with it.
  OwnDescriptor descriptor_;
  struct Mapping {
    ~Mapping();
    Page* page = nullptr;
    std::uint64_t bytes = 0;
  } mapping_;
  bool is_published_ = false;
};

}  // namespace kvferry::cpu_tier
