// SPDX-License-Identifier: Apache-2.0
// Chunks of WorkerEngine's host memory that go back to the machine, and come back.
#include "kvferry/base/error.hpp"

#include "worker_impl.hpp"

#include <algorithm>
#include <utility>

namespace kvferry::connector {
namespace {

std::string text_of(const ChunkOrder& order) {
  return (order.change == ChunkChange::kRetire ? "retire chunks " : "restore chunks ") +
         std::to_string(order.first.value()) + " to " +
         std::to_string(std::uint64_t{order.first.value()} + order.count);
}

bool overlap(const ChunkOrder& a, const ChunkOrder& b) {
  return a.first.value() < b.first.value() + std::uint64_t{b.count} &&
         b.first.value() < a.first.value() + std::uint64_t{a.count};
}

bool holds(const ChunkOrder& order, std::uint32_t chunk) {
  return chunk >= order.first.value() && chunk - order.first.value() < order.count;
}

}  // namespace

bool WorkerEngine::Impl::is_usable(std::uint32_t chunk) const {
  if (chunk >= arena_->num_chunks()) return false;
  if (is_retired_.empty()) return chunk < reported_chunks_;
  return !is_retired_[chunk] && (chunk < reported_chunks_ || chunk >= arena_->num_first());
}

bool WorkerEngine::Impl::is_changing(const ChunkOrder& order) const {
  return std::any_of(chunk_orders_.begin(), chunk_orders_.end(),
                     [&order](const ChunkOrder& other) { return overlap(order, other); });
}

void WorkerEngine::Impl::check_chunk_orders(const StepPlan& plan) const {
  const auto refuse = [this](const ChunkOrder& order, const std::string& why) {
    throw ProtocolError(rank_text() + " is to " + text_of(order) + ", but " + why +
                        ": scheduler and workers must run the same kvferry version");
  };
  for (std::size_t i = 0; i < plan.chunks.size(); ++i) {
    const ChunkOrder& order = plan.chunks[i];
    const std::uint64_t end = std::uint64_t{order.first.value()} + order.count;
    if (is_retired_.empty()) refuse(order, "its memory cannot be resized");
    if (order.count == 0 || end > is_retired_.size()) {
      refuse(order, "it has " + std::to_string(is_retired_.size()));
    }
    const std::span<const ChunkOrder> others = std::span(plan.chunks).first(i);
    const auto is_same = [&order](const ChunkOrder& other) { return overlap(order, other); };
    if (is_changing(order) || std::any_of(others.begin(), others.end(), is_same)) {
      refuse(order, "another order for some of them is under way");
    }
    const auto expect_apart = [&](SlabClassId of, std::span<const BlockSlot> blocks) {
      for (const BlockSlot& pair : blocks) {
        const std::uint32_t chunk = pair.slot.value() / options_.slots_per_chunk[of.value()];
        if (holds(order, chunk)) refuse(order, "the same plan names slots of them");
      }
    };
    for (const StoreOrder& store : plan.stores) expect_apart(store.slab_class, store.blocks);
    for (const LoadOrder& load : plan.loads) {
      for (const ClassBlocks& part : load.parts) expect_apart(part.slab_class, part.blocks);
    }
  }
}

cpu_tier::ChunkRange WorkerEngine::Impl::pieces_of(const ChunkOrder& order) const {
  const std::uint32_t of_piece = arena_->chunks_per_piece();
  std::uint32_t first = order.first.value() / of_piece;
  std::uint32_t end = (order.first.value() + order.count + of_piece - 1) / of_piece;
  if (order.change == ChunkChange::kRetire) {
    const auto is_quiet = [this, of_piece](std::uint32_t piece) {
      const ChunkOrder all{ChunkId(piece * of_piece), of_piece, ChunkChange::kRetire};
      const auto begin = is_retired_.begin() + std::ptrdiff_t{piece} * of_piece;
      const auto most = is_retired_.end() - begin;
      return std::all_of(begin, begin + std::min<std::ptrdiff_t>(of_piece, most),
                         [](bool is_retired) { return is_retired; }) &&
             std::none_of(chunk_orders_.begin(), chunk_orders_.end(),
                          [&all](const ChunkOrder& other) {
                            return other.change == ChunkChange::kRestore && overlap(all, other);
                          });
    };
    // Only the pieces at the two ends can hold chunks of other orders. Of chunks that are being
    // restored, the memory stays: they are usable when that order ends, which is before this one.
    if (first < end && !is_quiet(first)) ++first;
    if (first < end && !is_quiet(end - 1)) --end;
  }
  return {ChunkId(first * of_piece), ChunkId(std::min(end * of_piece, arena_->num_chunks()))};
}

void WorkerEngine::Impl::resize(std::span<const ChunkOrder> orders) {
  if (orders.empty()) return;
  if (!growth_) {
    growth_.emplace(*arena_, cpu_tier::GrowthOptions{.pinning_bandwidth_limit =
                                                         options_.pinning_bandwidth_limit});
    growth_->go_gently();
  }
  for (const ChunkOrder& order : orders) {
    const bool is_retirement = order.change == ChunkChange::kRetire;
    if (is_retirement) std::fill_n(is_retired_.begin() + order.first.value(), order.count, true);
    growth_->order(
        {is_retirement ? cpu_tier::ArenaChange::kRetire : cpu_tier::ArenaChange::kRestore,
         pieces_of(order)});
    chunk_orders_.push_back(order);
  }
}

void WorkerEngine::Impl::check_chunk_orders_ended() {
  if (chunk_orders_.empty()) return;
  for (std::string& failure : growth_->take_ends()) {
    const ChunkOrder order = chunk_orders_.front();
    chunk_orders_.pop_front();
    if (order.change == ChunkChange::kRestore && failure.empty()) {
      std::fill_n(is_retired_.begin() + order.first.value(), order.count, false);
    }
    report_.chunks.push_back({order, std::move(failure)});
  }
}

}  // namespace kvferry::connector
