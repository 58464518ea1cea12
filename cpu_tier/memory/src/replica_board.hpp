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

/// What every member works out for itself; they must agree.
struct ReplicaGeometry {
  std::uint64_t chunk_bytes = 0;
  std::uint64_t num_chunks = 0;  ///< That were asked for.
  std::uint64_t pinned_piece_bytes = 0;
  std::uint64_t tags_per_chunk = 0;
};

/// A file without a name that the first member has open.
struct OfferedFile {
  int descriptor = -1;
  std::uint64_t inode = 0;
};

/// What the first member obtained, for all.
struct ReplicaOffer {
  std::uint32_t num_chunks = 0;
  std::uint32_t chunks_per_piece = 0;
  PageKind pages = PageKind::kNormal;
  /// Where the memory is: that process has its files open.
  pid_t process = 0;
  OfferedFile chunks = {};
  OfferedFile tags = {};  ///< In normal pages; none if the chunks have no tags.
};

/// What the members of a replica group tell each other: the geometry, where the memory is, who
/// lives, and how many of its pieces each has made resident. It is a small file in shared memory
/// that all map. A member holds a lock of its own on it (of its open file, so that several may be
/// in one process), which ends with its process: nobody waits for who is gone, and a board without
/// its first member is nobody's and is removed by whoever finds it. Lock-free; thread-safe.
class ReplicaBoard {
 public:
  enum class Standing : std::uint8_t { kNotYet, kLives, kGone };

  /// The first member's, which nobody finds before publish(). Throws ResourceError if no file can
  /// be made.
  ReplicaBoard(const ReplicaGroup& group, const ReplicaGeometry& geometry,
               const ReplicaOffer& offer, const MachineRoot& machine);
  /// Another member's. Waits for the first one's, `group.patience` at most. Throws TimeoutError if
  /// there is none by then, TopologyError naming both sides if geometry or version differ or
  /// another process has joined as this member, and ResourceError.
  ReplicaBoard(const ReplicaGroup& group, const ReplicaGeometry& geometry,
               const MachineRoot& machine);
  /// end(), and of the first member withdraw().
  ~ReplicaBoard();
  ReplicaBoard(const ReplicaBoard&) = delete;
  ReplicaBoard& operator=(const ReplicaBoard&) = delete;

  /// Gives a new board its name, at once and whole. Throws TopologyError if a living group has it.
  void publish();
  /// All have joined, and nobody has to find it any more. Idempotent.
  void withdraw() noexcept;

  [[nodiscard]] const ReplicaOffer& offer() const { return offer_; }
  [[nodiscard]] Standing standing(std::uint32_t member) const;
  /// This member has made so many of its pieces resident, in order. What it wrote into them before
  /// is seen by whoever reads num_resident() behind it.
  void set_resident(std::uint32_t num_pieces) noexcept;
  [[nodiscard]] std::uint32_t num_resident(std::uint32_t member) const;
  /// This member makes no more pieces resident. The first reason stays.
  void end(std::string_view why) noexcept;
  /// Why that member has ended; empty if it has not.
  [[nodiscard]] std::string why_ended(std::uint32_t member) const;
  /// "member 1 of 4 (process 123)"
  [[nodiscard]] std::string text_of(std::uint32_t member) const;
  [[nodiscard]] const ReplicaGroup& group() const { return group_; }

 private:
  struct Page;
  struct Member;
  /// False if there is none of a living group yet.
  [[nodiscard]] bool open_published();
  /// Takes the first member's over if it is of the same geometry.
  void take_offer(const ReplicaGeometry& geometry);
  void map(std::uint64_t bytes);
  [[nodiscard]] bool lock_own();
  void enter();
  [[nodiscard]] Member& member(std::uint32_t index) const;

  const ReplicaGroup group_;
  const std::filesystem::path path_;
  ReplicaOffer offer_;
  /// Its lock ends with it.
  OwnDescriptor descriptor_;
  struct Mapping {
    ~Mapping();
    Page* page = nullptr;
    std::uint64_t bytes = 0;
  } mapping_;
  bool is_published_ = false;
};

}  // namespace kvferry::cpu_tier
