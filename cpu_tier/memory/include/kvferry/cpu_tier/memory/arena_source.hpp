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

/// What a source gives an arena.
struct ArenaGrant {
  /// Fewer than were asked for only with Shortage::kTakeLess, or where another process asked.
  std::uint32_t num_chunks = 0;
  std::uint32_t chunks_per_piece = 0;
  /// Pieces that become ready together, after the very first one, which becomes so alone.
  std::uint32_t pieces_per_step = 1;
  /// Null: another process claims the memory, or it is there already.
  std::unique_ptr<MemoryClaim> claim = nullptr;
  std::vector<std::string> warnings = {};
};

/// Where the bytes of one arena come from. The arena calls grant(), then map(), once each, then
/// make_resident() any number of times: one thread at a time.
class ArenaSource {
 public:
  ArenaSource() = default;
  ArenaSource(const ArenaSource&) = delete;
  ArenaSource& operator=(const ArenaSource&) = delete;
  /// Called after the mapping and the claim are gone.
  virtual ~ArenaSource() = default;

  /// Claims the memory and checks the budget, before a page is touched. Throws ConfigError,
  /// ResourceError (the limit, the request, the remedy), and as the source itself says.
  [[nodiscard]] virtual ArenaGrant grant(const ArenaShape& asked, const ArenaOptions& options) = 0;
  /// Maps what was granted. Throws ResourceError.
  [[nodiscard]] virtual std::unique_ptr<HostMapping> map() = 0;
  /// Makes chunks, which are whole pieces or end with the arena, resident. Returns how much of the
  /// time it waited for other processes; nothing if it was stopped first. Throws ResourceError, and
  /// as the source itself says. When it does not succeed, the caller releases the part.
  [[nodiscard]] virtual std::optional<std::chrono::nanoseconds> make_resident(
      ArenaPages& pages, ChunkRange chunks, const std::stop_token& stop) = 0;
  /// Of so many bytes of chunks that are not ready: what this process is to claim until they are.
  [[nodiscard]] virtual std::uint64_t bytes_to_claim(std::uint64_t bytes) const { return bytes; }

  /// Whether pieces can be given back to the machine, once map() was called.
  [[nodiscard]] virtual bool can_give_back() const { return false; }
  /// Gives the pages of whole pieces back to the machine. No process uses them any more; of other
  /// processes that have the memory, each calls this for itself. Only if can_give_back().
  virtual void give_back(ArenaPages& /*pages*/, ChunkRange /*chunks*/) noexcept {}
  /// Makes pieces resident that are not, after a claim of their own. Waits for no other process.
  /// False if it was stopped; then, and when it throws ResourceError, the caller gives them back.
  [[nodiscard]] virtual bool make_resident_again(ArenaPages& /*pages*/, ChunkRange /*chunks*/,
                                                 const std::stop_token& /*stop*/) {
    return false;
  }

  /// This process makes no more chunks resident, because of `why` (not empty). The first reason
  /// stays.
  virtual void end(std::string_view /*why*/) noexcept {}
  /// All processes that are to find this source's memory have found it. Idempotent.
  virtual void withdraw() noexcept {}
  /// No device of this process touches the memory any more: this process need not be there for
  /// others. Nothing is made resident after it. Idempotent.
  virtual void leave() noexcept {}
};

/// Memory of this process alone.
[[nodiscard]] std::unique_ptr<ArenaSource> make_own_source();

/// The one memory of a replica group: each member registers all of it with its own device, and
/// populates the pieces that it is home of. The first member asks for the memory, and tells the
/// others how much was granted. Of a group of one: as make_own_source().
///
/// grant() of another member waits for the first one, `group.patience` at most. It throws
/// TimeoutError if there is none by then, TopologyError naming both sides if geometry or version
/// differ or another process has joined as this member, and ConfigError if the first member's
/// process cannot be seen from here. make_resident() waits for the other members' pieces; it throws
/// ResourceError if a piece's home has ended or its process is gone, and TimeoutError after the
/// group's patience if the home has not joined or the wait cannot be stopped. Throws ConfigError
/// unless the member is one of the group's.
[[nodiscard]] std::unique_ptr<ArenaSource> make_group_source(const ReplicaGroup& group);

}  // namespace kvferry::cpu_tier
