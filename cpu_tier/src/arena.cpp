// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/arena.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/base/test_hooks.hpp"
#include "kvferry/cpu_tier/memlock_limit.hpp"
#include "kvferry/cpu_tier/pool_budget.hpp"

#include <algorithm>
#include <chrono>
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

/// Checks the budget again before a part of the mapping is touched.
void check_part(std::uint64_t bytes, PageKind pages, const MachineRoot& machine) {
  if (pages == PageKind::kPool) {
    check_pool_budget(bytes, PoolStep::kPopulate, machine);
  } else {
    check_memory_budget(bytes, machine);
  }
}

}  // namespace

std::uint64_t slots_per_piece(std::uint64_t slot_bytes, std::uint64_t page_bytes,
                              std::uint64_t max_piece_bytes) {
  const std::uint64_t quantum = page_bytes / std::gcd(page_bytes, slot_bytes);
  return std::max(max_piece_bytes / slot_bytes / quantum, std::uint64_t{1}) * quantum;
}

Arena::Grant Arena::ask(std::uint64_t slot_bytes, std::uint32_t num_slots,
                        const ArenaOptions& options) {
  const std::uint64_t bytes = checked_bytes(slot_bytes, num_slots);
  const PageKind pages = choose_pages(bytes, options.pages, options.machine);
  auto claim = std::make_unique<MemoryClaim>(bytes, pages, options.group, options.machine);
  Grant grant{pages, num_slots, nullptr, {}};
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
  return grant;
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
      warnings_(std::move(grant.warnings)),
      claim_(std::move(grant.claim)),
      mapping_(slot_bytes * grant.num_slots, grant.pages),
      populator_(options.placement, options.num_threads) {
  // The host back end locks nothing.
  if (device.kind() != gpu::BackendKind::kHost) {
    if (auto warning = memlock_warning(mapping_.size_bytes())) warnings_.push_back(*warning);
  }
  // The last slots of a small arena are one short piece, so that a larger figure would mean the
  // same.
  slots_per_piece_ = static_cast<std::uint32_t>(std::min<std::uint64_t>(
      cpu_tier::slots_per_piece(slot_bytes, HostMapping::page_bytes(), options.max_piece_bytes),
      num_slots_));
  piece_device_addresses_.resize((std::uint64_t{num_slots_} + slots_per_piece_ - 1) /
                                 slots_per_piece_);
  // With a thread bound there, first touch brings most of it to the node even if this is refused.
  const MemoryPlacement& placement = options_.placement;
  if (placement.node) {
    static_cast<void>(placement.topology->prefer(mapping_.bytes(), *placement.node));
  }
  if (options.start == ArenaStart::kReady) {
    while (grow(options.max_registration_bytes) > 0) {
    }
  }
}

Arena::~Arena() = default;

std::uint32_t Arena::grow(std::uint64_t most_bytes, const std::stop_token& stop) {
  const std::uint32_t first = num_ready();
  if (first == num_slots_) return 0;
  const std::uint64_t most =
      std::min(most_bytes, options_.max_registration_bytes) / (slots_per_piece_ * slot_bytes_);
  const auto end = static_cast<std::uint32_t>(std::min<std::uint64_t>(
      first + std::max<std::uint64_t>(most, 1) * slots_per_piece_, num_slots_));
  const std::span<std::byte> part = bytes_of(first, end);
  check_part(part.size(), mapping_.pages(), options_.machine);
  try {
    if (!populate(part, stop)) {
      mapping_.release(part);
      return 0;
    }
    register_slots(first, end);
  } catch (...) {
    mapping_.release(part);
    throw;
  }
  num_ready_.store(end, std::memory_order_release);
  if (claim_) claim_->set_bytes((num_slots_ - end) * slot_bytes_);
  return end - first;
}

void Arena::end_growth() noexcept {
  if (claim_) claim_->set_bytes(0);
}

std::span<std::byte> Arena::bytes_of(std::uint32_t first_slot, std::uint32_t end_slot) const {
  const std::uint64_t begin = first_slot * slot_bytes_;
  // The last piece ends with its page.
  const std::uint64_t end = end_slot == num_slots_ ? mapping_.size_bytes() : end_slot * slot_bytes_;
  return mapping_.bytes().subspan(begin, end - begin);
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
