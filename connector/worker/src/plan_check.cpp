// SPDX-License-Identifier: Apache-2.0
#include "plan_check.hpp"

#include "kvferry/base/error.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

namespace kvferry::connector {
namespace {

[[noreturn]] void refuse(const std::string& what, const std::string& expected) {
  throw ProtocolError("a plan " + what + "; expected " + expected +
                      ": scheduler and workers must run the same kvferry version");
}

std::string text_of(TransferId transfer) { return "transfer " + std::to_string(transfer.value()); }

/// A block, or a slot and its class, as one number. Blocks have no class: all sizes belong to one
/// pool, in which a block belongs to one group at a time.
using Place = std::uint64_t;

Place slot_of(SlabClassId slab_class, SlotId slot) {
  return std::uint64_t{slab_class.value()} << 32U | slot.value();
}

std::string block_text(Place place) { return "block " + std::to_string(place); }
std::string slot_text(Place place) {
  return "slot " + std::to_string(static_cast<std::uint32_t>(place)) + " of slab class " +
         std::to_string(place >> 32U);
}
using TextOf = std::string (*)(Place);

/// The places that the stores, or the loads, of a plan touch.
struct Places {
  std::vector<Place> blocks;
  std::vector<Place> slots;

  void add(SlabClassId slab_class, std::span<const BlockSlot> pairs) {
    for (const BlockSlot& pair : pairs) {
      blocks.push_back(pair.block.value());
      slots.push_back(slot_of(slab_class, pair.slot));
    }
  }
  void sort() {
    std::sort(blocks.begin(), blocks.end());
    std::sort(slots.begin(), slots.end());
  }
};

/// `sorted` has the places that copies write.
void check_once(TextOf text, std::span<const Place> sorted, const char* does) {
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice == sorted.end()) return;
  refuse(std::string(does) + " " + text(*twice) + " twice", "once at most");
}

void check_apart(TextOf text, std::span<const Place> written, std::span<const Place> read) {
  auto other = read.begin();
  for (const Place place : written) {
    while (other != read.end() && *other < place) ++other;
    if (other == read.end()) return;
    if (*other != place) continue;
    refuse("reads and writes " + text(place),
           "one of the two, because a step's loads and stores have no order");
  }
}

/// Slots of several classes in one chunk would share bytes.
void check_chunks(std::span<const Place> slots, std::span<const std::uint32_t> slots_per_chunk) {
  /// Chunk and class of each slot. After sorting, each chunk may occur only once.
  std::vector<std::uint64_t> chunks;
  for (const Place slot : slots) {
    const std::uint64_t slab_class = slot >> 32U;
    const std::uint64_t chunk = static_cast<std::uint32_t>(slot) / slots_per_chunk[slab_class];
    const std::uint64_t one = chunk << 32U | slab_class;
    if (chunks.empty() || chunks.back() != one) chunks.push_back(one);
  }
  std::sort(chunks.begin(), chunks.end());
  chunks.erase(std::unique(chunks.begin(), chunks.end()), chunks.end());
  const auto same_chunk = [](std::uint64_t a, std::uint64_t b) { return a >> 32U == b >> 32U; };
  const auto shared = std::adjacent_find(chunks.begin(), chunks.end(), same_chunk);
  if (shared == chunks.end()) return;
  refuse("names slots of two slab classes in chunk " + std::to_string(*shared >> 32U),
         "one class for each chunk");
}

void check_transfers(const StepPlan& plan, const std::set<TransferId>& under_way) {
  std::vector<TransferId> transfers;
  for (const StoreOrder& order : plan.stores) transfers.push_back(order.transfer);
  for (const LoadOrder& order : plan.loads) transfers.push_back(order.transfer);
  for (const TransferId transfer : transfers) {
    if (!under_way.contains(transfer)) continue;
    refuse("names " + text_of(transfer) + ", which is under way", "another number for each");
  }
  std::sort(transfers.begin(), transfers.end());
  if (!transfers.empty() && transfers.front() == TransferId()) {
    refuse("has a transfer 0", "1 or more");
  }
  const auto twice = std::adjacent_find(transfers.begin(), transfers.end());
  if (twice != transfers.end()) refuse("names " + text_of(*twice) + " twice", "once at most");
  for (const std::vector<TransferId>& unwanted : {plan.cancels, plan.expiries}) {
    if (std::find(unwanted.begin(), unwanted.end(), TransferId()) == unwanted.end()) continue;
    refuse("cancels transfer 0", "1 or more");
  }
}

void check_notices(std::span<const FailureNotice> notices) {
  std::unordered_set<TransferId> transfers;
  std::unordered_set<std::string> requests;
  for (const FailureNotice& notice : notices) {
    if (notice.transfer == TransferId()) refuse("has a notice of transfer 0", "1 or more");
    if (!transfers.insert(notice.transfer).second) {
      refuse("has two notices of " + text_of(notice.transfer), "one");
    }
    if (!requests.insert(notice.engine_request_id).second) {
      refuse("has two notices of request " + notice.engine_request_id, "one");
    }
  }
}

}  // namespace

void check_consistent(const StepPlan& plan, std::span<const std::uint32_t> slots_per_chunk,
                      const std::set<TransferId>& under_way) {
  check_transfers(plan, under_way);
  check_notices(plan.notices);
  Places stored;
  for (const StoreOrder& order : plan.stores) stored.add(order.slab_class, order.blocks);
  Places loaded;
  for (const LoadOrder& order : plan.loads) {
    for (const ClassBlocks& part : order.parts) loaded.add(part.slab_class, part.blocks);
  }
  stored.sort();
  loaded.sort();
  check_once(slot_text, stored.slots, "stores into");
  check_once(block_text, loaded.blocks, "loads into");
  check_apart(slot_text, stored.slots, loaded.slots);
  check_apart(block_text, loaded.blocks, stored.blocks);
  if (slots_per_chunk.size() == 1) return;
  stored.slots.insert(stored.slots.end(), loaded.slots.begin(), loaded.slots.end());
  check_chunks(stored.slots, slots_per_chunk);
}

}  // namespace kvferry::connector
