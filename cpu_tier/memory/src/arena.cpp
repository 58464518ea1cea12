// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/memory/arena.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/base/test_hooks.hpp"
#include "kvferry/cpu_tier/memory/claim_turn.hpp"
#include "kvferry/cpu_tier/memory/memlock_limit.hpp"
#include "kvferry/cpu_tier/memory/pool_budget.hpp"
#include "kvferry/cpu_tier/peers/joined_tier.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <limits>
#include <numeric>
#include <string>

namespace kvferry::cpu_tier {
namespace {

using Clock = std::chrono::steady_clock;

/// Less says nothing about a rate.
constexpr std::uint64_t kTellingBytes = std::uint64_t{16} << 20U;

/// The arena's size, when it can exist.
std::uint64_t checked_bytes(std::uint64_t slot_bytes, std::uint32_t num_slots) {
  if (slot_bytes == 0 || num_slots == 0) {
    throw ConfigError("an arena of " + std::to_string(num_slots) + " slots of " +
                      std::to_string(slot_bytes) +
                      " bytes holds nothing: make the CPU tier larger");
  }
  if (slot_bytes > std::numeric_limits<std::uint64_t>::max() / num_slots) {
    throw ResourceError(std::to_string(num_slots) + " slots of " + std::to_string(slot_bytes) +
                        " bytes cannot be addressed: make the CPU tier smaller");
  }
  return slot_bytes * num_slots;
}

/// Slots in each piece of an arena of `num_slots`. The last slots of a small one are one short
/// piece, so that a larger figure would mean the same. A shared one has a piece for each member at
/// least, if pages allow.
std::uint32_t piece_slots(std::uint64_t slot_bytes, std::uint32_t num_slots,
                          const ArenaOptions& options) {
  const std::uint32_t size = options.replicas.size;
  const std::uint64_t most =
      options.replicas.is_shared()
          ? std::min(options.pinned_piece_bytes, slot_bytes * num_slots) / size
          : options.pinned_piece_bytes;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(
      slots_per_piece(slot_bytes, HostMapping::page_bytes(), most), num_slots));
}

ReplicaGeometry geometry_of(std::uint64_t slot_bytes, std::uint32_t num_slots,
                            const ArenaOptions& options) {
  return {slot_bytes, num_slots, options.pinned_piece_bytes};
}

}  // namespace

std::uint64_t slots_per_piece(std::uint64_t slot_bytes, std::uint64_t page_bytes,
                              std::uint64_t pinned_piece_bytes) {
  const std::uint64_t quantum = page_bytes / std::gcd(page_bytes, slot_bytes);
  return std::max(pinned_piece_bytes / slot_bytes / quantum, std::uint64_t{1}) * quantum;
}

Arena::Grant Arena::ask(std::uint64_t slot_bytes, std::uint32_t num_slots,
                        const ArenaOptions& options) {
  const std::uint64_t bytes = checked_bytes(slot_bytes, num_slots);
  if (options.shared) {
    Grant grant = ask_of_tier(slot_bytes, num_slots, options);
    grant.slots_per_piece = piece_slots(slot_bytes, grant.num_slots, options);
    return grant;
  }
  const ReplicaGroup& replicas = options.replicas;
  if (replicas.size == 0 || replicas.index >= replicas.size) {
    throw ConfigError("member " + std::to_string(replicas.index) + " of a replica group of " +
                      std::to_string(replicas.size) + "; expected a member below the size");
  }
  if (replicas.index > 0) return join(slot_bytes, num_slots, options);
  const PageKind pages = choose_pages(bytes, options.pages, options.machine);
  const ClaimTurn turn(options.machine);
  auto claim = std::make_unique<MemoryClaim>(bytes, pages, options.group, options.machine);
  Grant grant{pages, num_slots, 0, nullptr, nullptr, {}};
  if (!claim->why_unseen().empty()) grant.warnings.push_back(claim->why_unseen());
  if (const auto shortage = claim->shortage();
      shortage && options.shortage == Shortage::kTakeLess) {
    const std::uint64_t room = room_bytes(claim->limits()) / claim->num_ranks_to_come();
    // Of no room at all the check says which limit leaves none.
    grant.num_slots =
        static_cast<std::uint32_t>(std::clamp<std::uint64_t>(room / slot_bytes, 1, num_slots));
    claim->set_bytes(grant.num_slots * slot_bytes);
    grant.warnings.push_back("this rank takes " + std::to_string(grant.num_slots) + " of " +
                             std::to_string(num_slots) + " slots: " + *shortage);
  }
  claim->check();
  grant.claim = std::move(claim);
  grant.slots_per_piece = piece_slots(slot_bytes, grant.num_slots, options);
  if (replicas.is_shared()) {
    grant.replicas =
        ReplicaMemory::make(replicas, geometry_of(slot_bytes, num_slots, options), grant.num_slots,
                            grant.slots_per_piece, pages, options.machine);
  }
  return grant;
}

Arena::Grant Arena::join(std::uint64_t slot_bytes, std::uint32_t num_slots,
                         const ArenaOptions& options) {
  auto replicas = ReplicaMemory::join(options.replicas, geometry_of(slot_bytes, num_slots, options),
                                      options.machine);
  const PageKind pages = replicas->file().pages();
  const std::uint32_t granted = replicas->num_slots();
  const std::uint32_t of_piece = replicas->slots_per_piece();
  return {pages, granted, of_piece, nullptr, std::move(replicas), {}};
}

Arena::Arena(gpu::Device& device, std::uint64_t slot_bytes, std::uint32_t num_slots,
             const ArenaOptions& options)
    : Arena(device, slot_bytes, ask(slot_bytes, num_slots, options), options) {}

Arena::Arena(gpu::Device& device, std::uint64_t slot_bytes, Grant grant,
             const ArenaOptions& options)
    : device_(device),
      slot_bytes_(slot_bytes),
      num_slots_(grant.num_slots),
      options_(options),
      slots_per_piece_(grant.slots_per_piece),
      warnings_(std::move(grant.warnings)),
      claim_(std::move(grant.claim)),
      replicas_(std::move(grant.replicas)),
      mapping_(map(grant.pages)),
      populator_(options.placement, options.num_threads) {
  // The host back end locks nothing.
  if (device.kind() != gpu::BackendKind::kHost) {
    if (auto warning = memlock_warning(mapping_.size_bytes())) warnings_.push_back(*warning);
  }
  piece_device_addresses_.resize((std::uint64_t{num_slots_} + slots_per_piece_ - 1) /
                                 slots_per_piece_);
  // With a thread bound there, first touch brings most of it to the node even if this is refused.
  const MemoryPlacement& placement = options_.placement;
  if (placement.node && !replicas_ && !options_.shared) {
    static_cast<void>(placement.topology->prefer(mapping_.bytes(), *placement.node));
  }
  // Not before it is mapped, which takes the pool's pages.
  if (replicas_) replicas_->publish();
  if (options.start == ArenaStart::kReady) {
    while (grow(options.max_registration_bytes) > 0) {
    }
  }
}

Arena::~Arena() = default;

HostMapping Arena::map(PageKind pages) const {
  if (replicas_) return HostMapping(replicas_->file());
  const std::uint64_t bytes = slot_bytes_ * num_slots_;
  if (const JoinedRank* const rank = options_.shared.get()) {
    return HostMapping(rank->tier().file(), rank->arena_offset(), bytes);
  }
  return HostMapping(bytes, pages);
}

std::uint64_t Arena::bytes_to_come(std::uint32_t end) const {
  const std::uint64_t bytes = (num_slots_ - end) * slot_bytes_;
  return options_.shared ? std::min(bytes, options_.shared->tier().missing_arena_bytes()) : bytes;
}

void Arena::check_part(std::uint64_t bytes) const {
  if (mapping_.pages() == PageKind::kPool) {
    check_pool_budget(bytes, PoolStep::kPopulate, options_.machine);
  } else {
    check_memory_budget(bytes, options_.machine);
  }
}

std::uint32_t Arena::grow(std::uint64_t most_bytes, const std::stop_token& stop) {
  const std::uint32_t first = num_ready();
  if (first == num_slots_) return 0;
  const std::uint32_t end = end_of_step(first, most_bytes);
  const std::span<std::byte> part = bytes_of(first, end);
  waited_ = {};
  const Clock::time_point began = Clock::now();
  try {
    if (!make_resident(first, end, stop)) {
      mapping_.release(part);
      return 0;
    }
    if (first == 0) warn_of_slow_memory(part.size(), Clock::now() - began - waited_);
    register_slots(first, end);
  } catch (const std::exception& error) {
    mapping_.release(part);
    if (replicas_) replicas_->end(error.what());
    throw;
  }
  num_ready_.store(end, std::memory_order_release);
  if (claim_) claim_->set_bytes(bytes_to_come(end));
  return end - first;
}

void Arena::warn_of_slow_memory(std::uint64_t bytes, std::chrono::nanoseconds took) {
  const double seconds = std::chrono::duration<double>(took).count();
  const double bytes_per_second = static_cast<double>(bytes) / seconds;
  if (took < options_.long_wait || bytes_per_second >= options_.slow_bytes_per_second) return;
  char text[160];
  std::snprintf(text, sizeof text, "the first %.0f MiB of the CPU tier took %.1f s (%.0f MB/s)",
                static_cast<double>(bytes) / (1 << 20), seconds, bytes_per_second / 1e6);
  warnings_.push_back(
      std::string(text) +
      ", for which the start of the engine waited: the machine gives memory slowly. A virtual "
      "machine does so for memory that it has not touched since it was started, and any machine "
      "whose cores are all busy, or whose kernel first has to free or to move memory. A smaller "
      "pinned_piece_bytes makes the wait shorter");
}

std::uint32_t Arena::end_of_step(std::uint32_t first, std::uint64_t most_bytes) const {
  // The first piece of a shared one waits for nobody but its home, so that members may be made one
  // after the other; behind it there is one of each member in every step.
  const std::uint64_t round = slots_per_piece_ * std::uint64_t{first == 0 ? 1 : num_sharing()};
  const std::uint64_t num_rounds =
      std::min(most_bytes, options_.max_registration_bytes) / (round * slot_bytes_);
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(first + std::max<std::uint64_t>(num_rounds, 1) * round, num_slots_));
}

void Arena::end_growth() noexcept {
  if (claim_) claim_->set_bytes(0);
  if (replicas_ && num_ready() < num_slots_) replicas_->end("its growth was stopped");
}

std::span<std::byte> Arena::bytes_of(std::uint32_t first_slot, std::uint32_t end_slot) const {
  const std::uint64_t begin = first_slot * slot_bytes_;
  // The last piece ends with its page.
  const std::uint64_t end = end_slot == num_slots_ ? mapping_.size_bytes() : end_slot * slot_bytes_;
  return mapping_.bytes().subspan(begin, end - begin);
}

bool Arena::make_resident(std::uint32_t first_slot, std::uint32_t end_slot,
                          const std::stop_token& stop) {
  if (replicas_) return populate_shared(first_slot, end_slot, stop);
  if (options_.shared) return populate_in_tier(first_slot, end_slot, stop);
  const std::span<std::byte> part = bytes_of(first_slot, end_slot);
  check_part(part.size());
  return populate(part, stop);
}

bool Arena::populate(std::span<std::byte> part, const std::stop_token& stop) {
  const Clock::time_point began = Clock::now();
  if (!populator_.populate(mapping_, part, stop)) return false;
  if (mapping_.pages() != PageKind::kTransparent || gave_up_huge_pages_) return true;
  const double seconds = std::chrono::duration<double>(Clock::now() - began).count();
  if (part.size() >= kTellingBytes &&
      static_cast<double>(part.size()) < seconds * options_.slow_bytes_per_second) {
    gave_up_huge_pages_ = true;
    mapping_.stop_huge_pages();
  }
  return true;
}

bool Arena::populate_shared(std::uint32_t first_slot, std::uint32_t end_slot,
                            const std::stop_token& stop) {
  const std::uint32_t first = first_slot / slots_per_piece_;
  const std::uint32_t end = (end_slot + slots_per_piece_ - 1) / slots_per_piece_;
  for (std::uint32_t piece = first; piece < end; ++piece) {
    if (!replicas_->is_home_of(piece) || replicas_->is_resident(piece)) continue;
    if (!populate_own_piece(piece, stop)) return false;
  }
  // Others' last, so that all populate at once.
  const Clock::time_point began = Clock::now();
  for (std::uint32_t piece = first; piece < end; ++piece) {
    if (!replicas_->wait_for(piece, stop)) return false;
  }
  waited_ = Clock::now() - began;
  // Whose pages are there already.
  return populator_.populate(mapping_, bytes_of(first_slot, end_slot), stop);
}

bool Arena::populate_own_piece(std::uint32_t piece, const std::stop_token& stop) {
  KVFERRY_PAUSE_POINT("arena.populate_own_piece");
  const std::uint32_t first_slot = piece * slots_per_piece_;
  const std::span<std::byte> part =
      bytes_of(first_slot, std::min(first_slot + slots_per_piece_, num_slots_));
  check_part(part.size());
  // The file keeps the preference, so that it is for this member's pieces only.
  const MemoryPlacement& placement = options_.placement;
  if (placement.node) static_cast<void>(placement.topology->prefer(part, *placement.node));
  const auto give_back = [&] {
    mapping_.release(part);
    replicas_->file().give_back(first_slot * slot_bytes_, part.size());
  };
  try {
    if (!populate(part, stop)) {
      give_back();
      return false;
    }
  } catch (const Error&) {
    give_back();
    throw;
  }
  replicas_->set_resident(piece);
  return true;
}

void Arena::register_slots(std::uint32_t first_slot, std::uint32_t end_slot) {
  const std::span<std::byte> part = bytes_of(first_slot, end_slot);
  if (KVFERRY_FAULT_POINT("arena.register")) {
    throw DeviceError("registering slots " + std::to_string(first_slot) + " to " +
                      std::to_string(end_slot) + " failed on request of a test");
  }
  registrations_.push_back(device_.register_host(part.data(), part.size()));
  const std::uintptr_t begin = registrations_.back()->device_address();
  for (std::uint32_t slot = first_slot; slot < end_slot; slot += slots_per_piece_) {
    piece_device_addresses_[slot / slots_per_piece_] = begin + (slot - first_slot) * slot_bytes_;
  }
}

ArenaReport Arena::report() const {
  const std::uint32_t ready = num_ready();
  ArenaReport report{.pages = mapping_.pages(),
                     .gave_up_huge_pages = gave_up_huge_pages_,
                     .huge_page_share = 0.0,
                     .node = options_.placement.node,
                     .share_on_node = std::nullopt};
  if (ready == 0) return report;
  const std::span<std::byte> part = bytes_of(0, ready);
  report.huge_page_share = huge_page_share(part);
  if (report.node) report.share_on_node = options_.placement.topology->share_on(part, *report.node);
  return report;
}

}  // namespace kvferry::cpu_tier
