// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/memory/replica_memory.hpp"

#include "kvferry/base/error.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>

namespace kvferry::cpu_tier {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLongestPoll = std::chrono::milliseconds(10);

/// The file that the first member offers.
SharedFile file_of(const ReplicaBoard& board) {
  const ReplicaOffer& offer = board.offer();
  std::string why;
  try {
    SharedFile file = SharedFile::of_process(offer.process, offer.descriptor, offer.pages);
    // In another pid namespace the number is another process's.
    if (file.inode() == offer.inode) return file;
    why = file.path().string() + " is another one's";
  } catch (const Error& error) {
    why = error.what();
  }
  if (board.standing(0) == ReplicaBoard::Standing::kGone) {
    throw ResourceError(board.text_of(0) + " is gone, and its memory with it: restart the engine");
  }
  throw ConfigError("the memory of " + board.text_of(0) + " cannot be had: " + why +
                    ". Ranks that share a KV cache have to see each other's processes: let their "
                    "containers share a pid namespace (docker --pid, Kubernetes "
                    "shareProcessNamespace) and a user, or set share_replicated_kv: false");
}

}  // namespace

std::unique_ptr<ReplicaMemory> ReplicaMemory::make(const ReplicaGroup& group,
                                                   const ReplicaGeometry& geometry,
                                                   std::uint32_t num_slots,
                                                   std::uint32_t slots_per_piece, PageKind pages,
                                                   const MachineRoot& machine) {
  SharedFile file = SharedFile::make_unnamed(num_slots * geometry.slot_bytes, pages);
  auto board = std::make_unique<ReplicaBoard>(group, geometry,
                                              ReplicaOffer{.num_slots = num_slots,
                                                           .slots_per_piece = slots_per_piece,
                                                           .pages = pages,
                                                           .process = ::getpid(),
                                                           .descriptor = file.descriptor(),
                                                           .inode = file.inode()},
                                              machine);
  return std::unique_ptr<ReplicaMemory>(new ReplicaMemory(std::move(file), std::move(board)));
}

std::unique_ptr<ReplicaMemory> ReplicaMemory::join(const ReplicaGroup& group,
                                                   const ReplicaGeometry& geometry,
                                                   const MachineRoot& machine) {
  auto board = std::make_unique<ReplicaBoard>(group, geometry, machine);
  SharedFile file = file_of(*board);
  return std::unique_ptr<ReplicaMemory>(new ReplicaMemory(std::move(file), std::move(board)));
}

bool ReplicaMemory::wait_for(std::uint32_t piece, const std::stop_token& stop) const {
  using Standing = ReplicaBoard::Standing;
  const std::uint32_t home = piece % group().size;
  const Clock::time_point end = Clock::now() + group().patience;
  for (auto pause = std::chrono::microseconds(50);;
       pause = std::min<std::chrono::microseconds>(2 * pause, kLongestPoll)) {
    // What became of the home is asked first: it may have ended right behind this piece.
    const Standing standing = board_->standing(home);
    const std::string why = board_->why_ended(home);
    if (is_resident(piece)) return true;
    if (stop.stop_requested()) return false;
    const std::string what = "piece " + std::to_string(piece) + " of the KV cache that " +
                             std::to_string(group().size) + " ranks share is missing: its home, " +
                             board_->text_of(home) + ", ";
    if (!why.empty()) throw ResourceError(what + "has ended its growth: " + why);
    if (standing == Standing::kGone) throw ResourceError(what + "is gone");
    const bool is_bounded = standing == Standing::kNotYet || !stop.stop_possible();
    if (is_bounded && Clock::now() >= end) {
      throw TimeoutError(
          what + (standing == Standing::kNotYet ? "has not joined" : "has not made it resident") +
          " within " +
          std::to_string(
              std::chrono::duration_cast<std::chrono::seconds>(group().patience).count()) +
          " s; restart the engine, or set share_replicated_kv: false");
    }
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace kvferry::cpu_tier
