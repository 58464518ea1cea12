// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/memory/arena_options.hpp"
#include "kvferry/cpu_tier/memory/arena_pages.hpp"
#include "kvferry/cpu_tier/memory/host_mapping.hpp"
#include "kvferry/cpu_tier/memory/memory_claim.hpp"
#include "kvferry/cpu_tier/memory/replica_group.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

namespace kvferry::cpu_tier {

/// What a source grants an arena.
struct ArenaGrant {
  /// Fewer than requested only with Shortage::kTakeLess, or if another process made the request.
  std::uint32_t num_chunks = 0;
  std::uint32_t chunks_per_piece = 0;
  /// Number of pieces that become ready together, in each step after the first.
  std::uint32_t pieces_per_step = 1;
  /// 0: as many as requested; otherwise at least as many.
  std::uint32_t tags_per_chunk = 0;
  /// Null: another process claims the memory, or it is already there.
  std::unique_ptr<MemoryClaim> claim = nullptr;
  std::vector<std::string> warnings = {};
};

/// Provides the bytes of one arena. The arena calls grant() once, then map() and map_tags() once,
/// then make_resident() any number of times, from one thread at a time.
class ArenaSource {
 public:
  ArenaSource() = default;
  ArenaSource(const ArenaSource&) = delete;
  ArenaSource& operator=(const ArenaSource&) = delete;
  /// Runs after the mapping and the claim are destroyed.
  virtual ~ArenaSource() = default;

  /// Claims the memory and checks the limits, before any page is touched. Throws ConfigError,
  /// ResourceError (with the limit, the request and the remedy), and the errors of the specific
  /// source.
  [[nodiscard]] virtual ArenaGrant grant(const ArenaShape& asked, const ArenaOptions& options) = 0;
  /// Maps the granted memory. Throws ResourceError.
  [[nodiscard]] virtual std::unique_ptr<HostMapping> map() = 0;
  /// Maps the tags of the granted chunks, which are not part of map(). They are zero until they are
  /// written. give_back() keeps them; Arena::retire() clears them. The processes that have the same
  /// chunks have the same tags. `granted.tag_bytes()` > 0. By default they are memory of this
  /// process only. Throws ResourceError.
  [[nodiscard]] virtual std::unique_ptr<HostMapping> map_tags(const ArenaShape& granted) {
    return std::make_unique<HostMapping>(granted.tag_bytes(), PageKind::kNormal);
  }
  /// Makes chunks resident. They are whole pieces, or end with the arena. Returns how long it
  /// waited for other processes; nothing if it was stopped first. Throws ResourceError, and the
  /// errors of the specific source. If it does not succeed, the caller releases the part.
  [[nodiscard]] virtual std::optional<std::chrono::nanoseconds> make_resident(
      ArenaPages& pages, ChunkRange chunks, const std::stop_token& stop) = 0;
  /// Given the bytes of the chunks that are not ready yet, the part of them that this process has
  /// to claim.
  [[nodiscard]] virtual std::uint64_t bytes_to_claim(std::uint64_t bytes) const { return bytes; }

  /// Whether pieces can be returned to the machine. Valid after map().
  [[nodiscard]] virtual bool can_give_back() const { return false; }
  /// Returns the pages of whole pieces to the machine. No process uses them any more. Every process
  /// that has the memory calls this for itself. Only if can_give_back().
  virtual void give_back(ArenaPages& /*pages*/, ChunkRange /*chunks*/) noexcept {}
  /// Releases pages of whole pieces in this process. Other processes may use them, and they are the
  /// same when this process makes them resident again. Only if can_give_back().
  virtual void release(ArenaPages& pages, ChunkRange chunks) noexcept { give_back(pages, chunks); }
  /// Claims and makes resident pieces that are not. Does not wait for other processes. Returns
  /// false if it was stopped. In that case, and when it throws ResourceError, the caller releases
  /// the pieces.
  [[nodiscard]] virtual bool make_resident_again(ArenaPages& /*pages*/, ChunkRange /*chunks*/,
                                                 const std::stop_token& /*stop*/) {
    return false;
  }

  /// Declares that this process makes no more chunks resident, because of `why` (not empty). Only
  /// the first reason is kept.
  virtual void end(std::string_view /*why*/) noexcept {}
  /// Declares that all processes that need to find this source's memory have found it. Idempotent.
  virtual void withdraw() noexcept {}
  /// Declares that no device of this process touches the memory any more, so other processes do not
  /// need this one. Nothing is made resident afterwards. Idempotent.
  virtual void leave() noexcept {}
};

/// Memory of this process only.
[[nodiscard]] std::unique_ptr<ArenaSource> make_own_source();

/// The single memory of a replica group. Each member registers all of it with its own device, and
/// populates the pieces of which it is the home. The first member requests the memory, and tells
/// the others how much was granted. With a group of one it is make_own_source().
///
/// grant() of the other members waits for the first member, at most `group.patience`. It throws
/// TimeoutError if the first member does not appear by then; TopologyError with both values if
/// geometry or version differ, or if another process has joined as this member; and ConfigError if
/// the first member's process is not visible from here. make_resident() waits for the other
/// members' pieces. It throws ResourceError if a piece's home has ended or its process is gone, and
/// TimeoutError after the group's patience if the home has not joined or the wait cannot be
/// stopped. This function throws ConfigError unless the member belongs to the group.
[[nodiscard]] std::unique_ptr<ArenaSource> make_group_source(const ReplicaGroup& group);

}  // namespace kvferry::cpu_tier
