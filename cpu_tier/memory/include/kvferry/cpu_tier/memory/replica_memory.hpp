// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/memory/replica_board.hpp"
#include "kvferry/cpu_tier/memory/shared_file.hpp"

#include <cstdint>
#include <memory>
#include <stop_token>
#include <string_view>
#include <utility>

namespace kvferry::cpu_tier {

/// The one memory of a replica group: the first member makes it, the others join, and all map its
/// file. It is in pieces; piece p belongs to member p mod size, its *home*, which alone makes it
/// resident, so that it lies on that member's NUMA node, and alone writes it, so that each link
/// carries its part. Pieces of one home become resident in order. Thread-safe.
class ReplicaMemory {
 public:
  /// The first member's, of `num_slots` slots; found by nobody before publish(). Throws
  /// ResourceError.
  [[nodiscard]] static std::unique_ptr<ReplicaMemory> make(
      const ReplicaGroup& group, const ReplicaGeometry& geometry, std::uint32_t num_slots,
      std::uint32_t slots_per_piece, PageKind pages, const MachineRoot& machine);
  /// Another member's. Throws as ReplicaBoard, and ConfigError if the first member's process cannot
  /// be seen from here.
  [[nodiscard]] static std::unique_ptr<ReplicaMemory> join(const ReplicaGroup& group,
                                                           const ReplicaGeometry& geometry,
                                                           const MachineRoot& machine);

  /// Of the first member: from now on others find it.
  void publish() {
    if (group().index == 0) board_->publish();
  }
  /// All members have joined.
  void withdraw_name() noexcept { board_->withdraw(); }

  [[nodiscard]] const SharedFile& file() const { return file_; }
  [[nodiscard]] std::uint32_t num_slots() const { return board_->offer().num_slots; }
  [[nodiscard]] std::uint32_t slots_per_piece() const { return board_->offer().slots_per_piece; }
  [[nodiscard]] const ReplicaGroup& group() const { return board_->group(); }

  [[nodiscard]] bool is_home_of(std::uint32_t piece) const {
    return piece % group().size == group().index;
  }
  [[nodiscard]] bool is_resident(std::uint32_t piece) const {
    return board_->num_resident(piece % group().size) > piece / group().size;
  }
  /// This member, its home, has made it and all its earlier ones resident.
  void set_resident(std::uint32_t piece) noexcept {
    board_->set_resident(piece / group().size + 1);
  }
  /// Waits for another home's piece; false if it was stopped. Bounded by the group's patience
  /// where the home has not joined yet or nobody can stop it. Throws ResourceError if the home has
  /// ended or its process is gone, and TimeoutError.
  [[nodiscard]] bool wait_for(std::uint32_t piece, const std::stop_token& stop) const;
  /// This member makes no more pieces resident, because of `why` (not empty); those who wait for
  /// them end. The first reason stays.
  void end(std::string_view why) noexcept { board_->end(why); }

 private:
  ReplicaMemory(SharedFile file, std::unique_ptr<ReplicaBoard> board)
      : file_(std::move(file)), board_(std::move(board)) {}

  SharedFile file_;
  std::unique_ptr<ReplicaBoard> board_;
};

}  // namespace kvferry::cpu_tier
