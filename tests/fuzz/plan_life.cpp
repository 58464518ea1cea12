// SPDX-License-Identifier: Apache-2.0
#include "plan_life.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/base/error.hpp"
#include "kvferry/cpu_tier/memory/slab_geometry.hpp"
#include "kvferry/gpu/host_link.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

namespace kvferry::fuzz {

using connector::LoadOrder;
using connector::StepPlan;
using connector::StepReport;
using connector::StoreOrder;

namespace {

/// The fragments of a block: blocks of the second class have the first one only.
constexpr std::array<std::uint32_t, 2> kBytes{48, 80};
constexpr std::array<std::uint32_t, 2> kStrides{64, 96};
constexpr std::array<std::uint32_t, 2> kSlotBytes{kBytes[0] + kBytes[1], kBytes[0]};
constexpr std::array<std::uint32_t, 2> kSlotsPerChunk{2, 5};

std::span<const std::byte> bytes_of(const std::string& message) {
  return std::as_bytes(std::span(message));
}

template <class T>
void patch(std::string& message, std::size_t offset, T value) {
  if (message.size() >= offset + sizeof value) {
    std::memcpy(message.data() + offset, &value, sizeof value);
  }
}

std::uint32_t num_fragments(SlabClassId slab_class) { return slab_class.value() == 0 ? 2 : 1; }

}  // namespace

PlanLife::PlanLife() { restart(); }

void PlanLife::restart() {
  engine_.reset();
  pool_.assign(std::size_t{kNumBlocks} * (kStrides[0] + kStrides[1]), 0);
  for (std::size_t i = 0; i < pool_.size(); ++i)
    pool_[i] = static_cast<std::uint8_t>(i * 7 + i / 64);
  model_pool_ = pool_;
  chunk_bytes_ = cpu_tier::chunk_bytes(kSlotsPerChunk,
                                       std::array<std::uint64_t, 2>{kSlotBytes[0], kSlotBytes[1]});
  model_arena_.assign(kNumChunks * chunk_bytes_, 0);
  const auto base = reinterpret_cast<std::uintptr_t>(pool_.data());
  const gpu::Fragment first{.base = base, .block_stride_bytes = kStrides[0], .bytes = kBytes[0]};
  const gpu::Fragment second{.base = base + std::uintptr_t{kNumBlocks} * kStrides[0],
                             .block_stride_bytes = kStrides[1],
                             .bytes = kBytes[1]};
  connector::WorkerOptions options;
  options.num_chunks = kNumChunks;
  options.slots_per_chunk.assign(kSlotsPerChunk.begin(), kSlotsPerChunk.end());
  options.transfer.staging_bytes = kRingBlocks * kSlotBytes[0];
  options.transfer.piece_bytes = kSlotBytes[0];
  engine_ = std::make_unique<connector::WorkerEngine>(
      gpu::make_host_device(),
      std::vector{gpu::make_block_geometry({first, second}, kNumBlocks),
                  gpu::make_block_geometry({first}, kNumBlocks)},
      options);
  last_seq_ = PlanSeq();
  is_unknown_ = false;
  retired_.clear();
  bind_right(next_plan());
  // All chunks are ready, and the rank says so.
  const auto start = std::chrono::steady_clock::now();
  while (engine_->num_slots() < kNumChunks * kSlotsPerChunk[0]) {
    KVFERRY_CHECK(std::chrono::steady_clock::now() - start < std::chrono::minutes(1),
                  "the arena does not become ready");
    std::this_thread::yield();
  }
  settle();
}

StepPlan PlanLife::next_plan() const {
  StepPlan plan;
  plan.domain = kDomain;
  plan.seq = last_seq_.next();
  return plan;
}

bool PlanLife::bind(const std::string& message) {
  try {
    engine_->bind(bytes_of(message), 0);
  } catch (const ProtocolError& error) {
    KVFERRY_CHECK(std::strlen(error.what()) > 20, "a refusal that says nothing");
    return false;
  }
  StepPlan plan = connector::decode_plan(bytes_of(message));
  KVFERRY_CHECK(plan.domain == kDomain && plan.seq == last_seq_.next(),
                "a plan out of turn was taken");
  last_seq_ = plan.seq;
  for (StoreOrder& order : plan.stores) {
    const TransferId id = order.transfer;
    KVFERRY_CHECK(owed_.stores.emplace(id, std::move(order)).second, "a store was taken twice");
  }
  for (LoadOrder& order : plan.loads) {
    const TransferId id = order.transfer;
    KVFERRY_CHECK(owed_.loads.emplace(id, std::move(order)).second, "a load was taken twice");
  }
  owed_.chunks.insert(owed_.chunks.end(), plan.chunks.begin(), plan.chunks.end());
  for (auto& notice : plan.notices) owed_.announcements.insert(std::move(notice.engine_request_id));
  return true;
}

void PlanLife::bind_right(StepPlan plan) {
  KVFERRY_CHECK(bind(encode(plan)), "a right plan was refused");
  engine_->save(0);
}

void PlanLife::take(const Way& way, std::string message) {
  if (!way.as_it_is) {
    // Behind magic and version.
    patch(message, 6, kDomain.value());
    patch(message, 10, last_seq_.next().value());
  }
  if (bind(message)) {
    if (way.twice) {
      patch(message, 10, last_seq_.next().value());
      static_cast<void>(bind(message));
    }
    if (way.cancelled) {
      StepPlan cancel = next_plan();
      for (const auto& [id, order] : owed_.stores) cancel.cancels.push_back(id);
      for (const auto& [id, order] : owed_.loads) cancel.cancels.push_back(id);
      is_unknown_ = true;
      bind_right(std::move(cancel));
    }
    if (!way.unsaved) engine_->save(0);
  } else {
    KVFERRY_CHECK(!engine_->waiting(), "what was refused waits");
  }
  // Ends what was not saved, too.
  bind_right(next_plan());
  settle();
  restore_all();
  expect_at_rest();
  if (is_unknown_) restart();
  expect_right_plan_works();
}

void PlanLife::note(const StepReport& report) {
  std::set<TransferId> over;
  for (const auto& [id, num_gathered] : report.gathered) {
    const auto found = owed_.stores.find(id);
    KVFERRY_CHECK(found != owed_.stores.end() && num_gathered <= found->second.blocks.size(),
                  "a gather that nobody ordered");
    store_in_model(found->second, num_gathered);
    if (num_gathered == 0) over.insert(id);
  }
  for (const auto& end : report.stores) {
    KVFERRY_CHECK(owed_.stores.contains(end.transfer) && !over.contains(end.transfer),
                  "a store's end that nobody waits for");
    KVFERRY_CHECK(end.outcome == Outcome::kDone || is_unknown_, "a store failed: " + end.reason);
    over.insert(end.transfer);
  }
  for (const TransferId id : over) owed_.stores.erase(id);
  for (const auto& [order, failure] : report.chunks) {
    KVFERRY_CHECK(!owed_.chunks.empty() && owed_.chunks.front() == order && failure.empty(),
                  "an order for chunks that nobody gave, or that failed: " + failure);
    end_in_model(order);
    owed_.chunks.erase(owed_.chunks.begin());
  }
  for (const auto& end : report.loads) {
    const auto found = owed_.loads.find(end.transfer);
    KVFERRY_CHECK(found != owed_.loads.end(), "a load's end that nobody waits for");
    KVFERRY_CHECK(end.outcome == Outcome::kDone || is_unknown_, "a load failed: " + end.reason);
    load_in_model(found->second);
    owed_.loads.erase(found);
  }
}

void PlanLife::settle() {
  const auto start = std::chrono::steady_clock::now();
  do {
    for (const std::string& id : engine_->collect()) {
      const auto found = owed_.announcements.find(id);
      KVFERRY_CHECK(found != owed_.announcements.end(), "an announcement that nobody ordered");
      owed_.announcements.erase(found);
    }
    if (const std::string bytes = engine_->take_report(); !bytes.empty()) {
      note(connector::decode_report(bytes_of(bytes)));
    }
    KVFERRY_CHECK(std::chrono::steady_clock::now() - start < std::chrono::minutes(1),
                  std::to_string(owed_.stores.size()) + " stores and " +
                      std::to_string(owed_.loads.size()) + " loads do not end");
    if (owes()) std::this_thread::yield();
  } while (owes());
  KVFERRY_CHECK(owed_.announcements.empty(), "a failure was not announced");
}

void PlanLife::end_in_model(const connector::ChunkOrder& order) {
  for (std::uint32_t i = 0; i < order.count; ++i) {
    const std::uint32_t chunk = order.first.value() + i;
    if (order.change == connector::ChunkChange::kRetire) {
      retired_.insert(chunk);
    } else {
      retired_.erase(chunk);
    }
  }
  // The arena is one piece, which goes as a whole.
  if (retired_.size() == kNumChunks) std::fill(model_arena_.begin(), model_arena_.end(), 0);
}

void PlanLife::restore_all() {
  if (retired_.empty()) return;
  StepPlan plan = next_plan();
  for (const std::uint32_t chunk : retired_) {
    plan.chunks.push_back({ChunkId(chunk), 1, connector::ChunkChange::kRestore});
  }
  bind_right(std::move(plan));
  settle();
}

std::size_t PlanLife::offset_of(std::uint32_t fragment, BlockId block) {
  const std::size_t begin = fragment == 0 ? 0 : std::size_t{kNumBlocks} * kStrides[0];
  return begin + std::size_t{block.value()} * kStrides[fragment];
}

std::size_t PlanLife::offset_of(SlabClassId slab_class, SlotId slot) const {
  const std::uint32_t per_chunk = kSlotsPerChunk[slab_class.value()];
  return slot.value() / per_chunk * chunk_bytes_ +
         std::size_t{slot.value() % per_chunk} * kSlotBytes[slab_class.value()];
}

void PlanLife::store_in_model(const StoreOrder& order, std::uint32_t num_gathered) {
  for (std::uint32_t i = 0; i < num_gathered; ++i) {
    std::size_t to = offset_of(order.slab_class, order.blocks[i].slot);
    for (std::uint32_t f = 0; f < num_fragments(order.slab_class); to += kBytes[f++]) {
      std::memcpy(&model_arena_[to], &model_pool_[offset_of(f, order.blocks[i].block)], kBytes[f]);
    }
  }
}

void PlanLife::load_in_model(const LoadOrder& order) {
  for (const connector::ClassBlocks& part : order.parts) {
    for (const BlockSlot& pair : part.blocks) {
      std::size_t from = offset_of(part.slab_class, pair.slot);
      for (std::uint32_t f = 0; f < num_fragments(part.slab_class); from += kBytes[f++]) {
        std::memcpy(&model_pool_[offset_of(f, pair.block)], &model_arena_[from], kBytes[f]);
      }
    }
  }
}

void PlanLife::expect_at_rest() const {
  const transfer::TransferStats stats = engine_->stats();
  KVFERRY_CHECK(stats.queued_bytes + stats.in_flight_bytes + stats.ring_used_bytes == 0 &&
                    !engine_->waiting(),
                "something is left behind");
  KVFERRY_CHECK(is_unknown_ || pool_ == model_pool_, "a wrong byte in the pool");
}

void PlanLife::expect_right_plan_works() {
  // Of both classes, in chunks that vary.
  const auto number = static_cast<std::uint32_t>(num_right_plans_++);
  const TransferId id(std::uint64_t{1} << 60U | number << 2U);
  const SlotId wide(number % kNumChunks * kSlotsPerChunk[0]);
  const SlotId narrow((number + 1) % kNumChunks * kSlotsPerChunk[1]);
  const BlockId block(number % (kNumBlocks - 3));
  StepPlan store = next_plan();
  using connector::StoreReadiness;
  store.stores.push_back({id, {}, SlabClassId(0), StoreReadiness::kNow, {{block, wide}}});
  store.stores.push_back(
      {id.next(), {}, SlabClassId(1), StoreReadiness::kAfterForward, {{block.next(), narrow}}});
  bind_right(std::move(store));
  settle();
  StepPlan load = next_plan();
  load.loads.push_back({id,
                        {},
                        {{SlabClassId(0), {{block.next().next(), wide}}},
                         {SlabClassId(1), {{block.next().next().next(), narrow}}}}});
  bind_right(std::move(load));
  settle();
  expect_at_rest();
}

}  // namespace kvferry::fuzz
