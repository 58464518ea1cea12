// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/cpu_tier/memory/host_mapping.hpp"
#include "kvferry/cpu_tier/memory/memory_budget.hpp"
#include "kvferry/cpu_tier/memory/memory_claim.hpp"
#include "kvferry/cpu_tier/memory/memory_placement.hpp"
#include "kvferry/cpu_tier/memory/populator.hpp"
#include "kvferry/cpu_tier/memory/replica_memory.hpp"
#include "kvferry/gpu/device.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

namespace kvferry::cpu_tier {

class JoinedRank;

enum class ArenaStart : std::uint8_t {
  kReady,  ///< The constructor makes all slots ready.
  kEmpty   ///< No slot is ready; grow() makes them.
};

enum class Shortage : std::uint8_t {
  kRefuse,   ///< An error.
  kTakeLess  ///< As many slots as this rank's part of what the machine has left holds.
};

struct ArenaOptions {
  /// Copies do not reach over the end of a piece, and registrations are of whole pieces. 64 MiB is
  /// the least that is worth a registration of its own while an engine serves: a registration may
  /// block launches.
  std::uint64_t pinned_piece_bytes = std::uint64_t{64} << 20;
  /// Most bytes of one registration. 2 GiB: one call over hundreds of GiB blocks CUDA in every
  /// process of the node for minutes (TensorRT-LLM#17773), and from 512 GiB on it fails
  /// (vllm#51081).
  std::uint64_t max_registration_bytes = std::uint64_t{2} << 30;
  ArenaStart start = ArenaStart::kReady;
  /// Unset: of the pool if it has enough, by its cgroups too; else transparent ones for as long as
  /// those come quickly.
  std::optional<PageKind> pages = std::nullopt;
  /// Transparent huge pages that come slower than this, all threads together, come from a kernel
  /// that moves memory about to make them: gigabytes per minute were seen, where normal pages come
  /// at gigabytes per second. What is populated later is normal pages then.
  double slow_bytes_per_second = 256e6;
  /// The owner of the arena waits for its first memory. A wait from here on at a rate below
  /// `slow_bytes_per_second` is a warning (see warnings()).
  std::chrono::nanoseconds long_wait = std::chrono::seconds(2);
  MemoryPlacement placement = {};
  /// That populate; 0: as Populator says.
  std::uint32_t num_threads = 0;
  /// The ranks whose arenas are made on this node, this one's included.
  ClaimGroup group = {};
  Shortage shortage = Shortage::kRefuse;
  /// Whom one memory is shared with. Its pieces are a `size`th of `pinned_piece_bytes`, so that
  /// what becomes ready at a time is of all members alike.
  ReplicaGroup replicas = {};
  /// The rank's part of a tier that engine instances share; unset: the memory is this process's.
  /// Slots are the tier's chunks then. Not together with `replicas`.
  std::shared_ptr<const JoinedRank> shared = nullptr;
  /// Where the memory budget is read from.
  MachineRoot machine = {};
};

/// What was obtained of what was wished for.
struct ArenaReport {
  PageKind pages = PageKind::kNormal;
  bool gave_up_huge_pages = false;  ///< They came too slowly: what came later is normal pages.
  double huge_page_share = 0.0;
  std::optional<std::uint32_t> node;    ///< The preferred one.
  std::optional<double> share_on_node;  ///< Unset: no node preferred, or the kernel does not tell.
};

/// Slots per piece: as many as fit into `pinned_piece_bytes` such that a piece ends where a page
/// and a slot end, because no copy may straddle two registrations and no page be in two. At least
/// one such multiple: pieces are larger than asked for where lcm(slot_bytes, page_bytes) is. All
/// arguments > 0.
[[nodiscard]] std::uint64_t slots_per_piece(std::uint64_t slot_bytes, std::uint64_t page_bytes,
                                            std::uint64_t pinned_piece_bytes);

/// One rank's pinned host memory: `num_slots` slots of `slot_bytes` each, contiguous. The first
/// num_ready() of them are populated and registered; slots become ready in order and stay so.
/// MADV_DONTFORK. One thread at a time grows it, and any may read what is ready meanwhile. The
/// owner quiesces all copies before destroying it. The device outlives it.
///
/// The arenas of a replica group (replica_memory.hpp), in processes of their own or in one, are one
/// memory: each registers all of it with its own device, and populates the pieces that it is home
/// of. Its first member asks for the memory, and tells the others how much was granted.
///
/// An arena in a shared tier (joined_tier.hpp) is a part of the tier's file, which other engine
/// instances map too: what is in it stays as it is, each populates what the file lacks, and nobody
/// gives pages back. One of those who map it claims what it lacks; the others ask step by step.
class Arena {
 public:
  /// Claims the memory, checks the budget (memory_claim.hpp) and maps it, before a page is touched;
  /// then does what `options.start` says. Throws
  /// ConfigError (nothing to hold), ResourceError (the limit, the request, the remedy) or
  /// DeviceError (registration); nothing is left behind then.
  Arena(gpu::Device& device, std::uint64_t slot_bytes, std::uint32_t num_slots,
        const ArenaOptions& options = {});
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Makes the next slots ready: at most `most_bytes`, one piece at least. Returns how many became
  /// ready: 0 if all are, or if it was stopped. Checks the budget again first: others take memory
  /// too, and a shortage noticed by the kernel would be a signal. Throws as the constructor; what
  /// it began is rolled back, and what was ready stays so. A shared arena makes a piece of each
  /// member ready at least, behind the very first one, which is the first member's; it waits for
  /// the others' (ReplicaMemory::wait_for()), and what this member fails at ends the group's
  /// growth.
  std::uint32_t grow(std::uint64_t most_bytes, const std::stop_token& stop = {});
  /// No more slots will become ready: what was claimed for them is others' again. Called by the
  /// thread that grows it.
  void end_growth() noexcept;
  /// How long the last grow() waited for other members.
  [[nodiscard]] std::chrono::nanoseconds waited() const { return waited_; }
  /// All ranks of the group have started, and need not see any more that this one has. Called when
  /// nobody grows it any more; any number of times.
  void withdraw_claim() noexcept {
    claim_.reset();
    if (replicas_) replicas_->withdraw_name();
  }

  /// Of one in a shared tier: no device touches it any more, so that its rank need not be there for
  /// others. The memory stays mapped. Called when nobody grows it any more; any number of times.
  void leave_tier() noexcept { options_.shared.reset(); }

  [[nodiscard]] std::uint64_t slot_bytes() const { return slot_bytes_; }
  /// Fewer than were asked for only with Shortage::kTakeLess.
  [[nodiscard]] std::uint32_t num_slots() const { return num_slots_; }
  [[nodiscard]] std::uint32_t num_ready() const {
    return num_ready_.load(std::memory_order_acquire);
  }
  /// Host address of a slot. Slots are contiguous: slot s + 1 follows slot s.
  [[nodiscard]] std::uintptr_t slot_address(SlotId slot) const {
    return mapping_.address() + std::uint64_t{slot.value()} * slot_bytes_;
  }
  /// The address by which the device knows a ready slot. Contiguous within a piece only.
  [[nodiscard]] std::uintptr_t slot_device_address(SlotId slot) const {
    return piece_device_addresses_[slot.value() / slots_per_piece_] +
           std::uint64_t{slot.value() % slots_per_piece_} * slot_bytes_;
  }
  /// A copy must not straddle slots of different pieces (slot / this).
  [[nodiscard]] std::uint32_t slots_per_piece() const { return slots_per_piece_; }
  /// Whether this arena's rank is the one that writes the piece's slots: always, if nobody shares
  /// it.
  [[nodiscard]] bool is_home_of(std::uint32_t piece) const {
    return !replicas_ || replicas_->is_home_of(piece);
  }
  /// Ranks whose arenas are this memory; 1: it is this one's own.
  [[nodiscard]] std::uint32_t num_sharing() const { return options_.replicas.size; }
  /// Why it lies where it does.
  [[nodiscard]] const std::string& placement_reason() const { return options_.placement.reason; }
  /// What its user is to be warned of, in sentences; usually nothing. Complete after the first
  /// grow(): until then the thread that grows the arena alone may read it.
  [[nodiscard]] const std::vector<std::string>& warnings() const { return warnings_; }
  /// Of the slots that are ready. Reads /proc: milliseconds.
  [[nodiscard]] ArenaReport report() const;

 private:
  /// What the machine has granted.
  struct Grant {
    PageKind pages = PageKind::kNormal;
    std::uint32_t num_slots = 0;
    std::uint32_t slots_per_piece = 0;
    std::unique_ptr<MemoryClaim> claim;
    std::unique_ptr<ReplicaMemory> replicas;
    std::vector<std::string> warnings;
  };
  [[nodiscard]] static Grant ask(std::uint64_t slot_bytes, std::uint32_t num_slots,
                                 const ArenaOptions& options);
  [[nodiscard]] static Grant join(std::uint64_t slot_bytes, std::uint32_t num_slots,
                                  const ArenaOptions& options);
  /// All but how many slots a piece has.
  [[nodiscard]] static Grant ask_of_tier(std::uint64_t slot_bytes, std::uint32_t num_slots,
                                         const ArenaOptions& options);
  Arena(gpu::Device& device, std::uint64_t slot_bytes, Grant grant, const ArenaOptions& options);

  [[nodiscard]] HostMapping map(PageKind pages) const;
  /// Bytes that this rank still claims when slots up to `end` are ready.
  [[nodiscard]] std::uint64_t bytes_to_come(std::uint32_t end) const;
  /// Checks the budget again before so much of the mapping is touched. Throws ResourceError.
  void check_part(std::uint64_t bytes) const;
  /// Behind the last slot that becomes ready next.
  [[nodiscard]] std::uint32_t end_of_step(std::uint32_t first, std::uint64_t most_bytes) const;
  [[nodiscard]] std::span<std::byte> bytes_of(std::uint32_t first_slot,
                                              std::uint32_t end_slot) const;
  /// Adds a warning if the first `bytes` came slowly enough for a user to wonder about the start.
  void warn_of_slow_memory(std::uint64_t bytes, std::chrono::nanoseconds took);
  void register_slots(std::uint32_t first_slot, std::uint32_t end_slot);
  /// Makes the slots resident, however that is done here. False if it was stopped.
  [[nodiscard]] bool make_resident(std::uint32_t first_slot, std::uint32_t end_slot,
                                   const std::stop_token& stop);
  /// Populates; gives transparent huge pages up if they came too slowly.
  [[nodiscard]] bool populate(std::span<std::byte> part, const std::stop_token& stop);
  /// Reserves what the tier's file lacks of these slots, and populates them.
  [[nodiscard]] bool populate_in_tier(std::uint32_t first_slot, std::uint32_t end_slot,
                                      const std::stop_token& stop);
  /// Populates this member's pieces, waits for the others', and maps all. False if it was stopped.
  [[nodiscard]] bool populate_shared(std::uint32_t first_slot, std::uint32_t end_slot,
                                     const std::stop_token& stop);
  [[nodiscard]] bool populate_own_piece(std::uint32_t piece, const std::stop_token& stop);

  gpu::Device& device_;
  const std::uint64_t slot_bytes_;
  const std::uint32_t num_slots_;
  ArenaOptions options_;
  std::uint32_t slots_per_piece_ = 0;
  std::vector<std::string> warnings_;
  std::unique_ptr<MemoryClaim> claim_;
  std::unique_ptr<ReplicaMemory> replicas_;  ///< Unset: the memory is this arena's own.
  HostMapping mapping_;
  Populator populator_;
  std::atomic<bool> gave_up_huge_pages_{false};
  std::vector<std::uintptr_t> piece_device_addresses_;
  std::atomic<std::uint32_t> num_ready_{0};
  std::chrono::nanoseconds waited_{0};
  /// After the mapping, so that every piece is unregistered before the memory goes, in a failed
  /// construction too.
  std::vector<std::unique_ptr<gpu::HostRegistration>> registrations_;
};

}  // namespace kvferry::cpu_tier
