// SPDX-License-Identifier: Apache-2.0
#include "tier_resizer.hpp"

#include <algorithm>
#include <utility>

namespace kvferry::connector {
namespace {

/// How many runs the ranks work on at once. The blocks evicted for them are gone for as long as
/// that takes.
constexpr std::size_t kMostUnderWay = 8;

/// Most chunks that one step evicts, or one run if that has more. Such a step takes some tens of
/// microseconds longer.
constexpr std::uint32_t kMostOfStep = 256;

}  // namespace

void TierResizer::begin(const Shape& shape) {
  shape_ = shape;
  if (shape_.run == 0) return;
  // A run that is not completely ready from the start is restored by an order.
  const std::uint32_t whole = shape_.first_chunks / shape_.run * shape_.run;
  if (shape_.first_chunks < shape_.max_chunks && whole == 0) {
    shape_.run = 0;
    return;
  }
  if (shape_.first_chunks < shape_.max_chunks) shape_.first_chunks = whole;
  for (std::uint32_t first = shape_.first_chunks; first < shape_.max_chunks; first += shape_.run) {
    retired_.insert(first);
  }
}

void TierResizer::set_target(std::uint32_t num_chunks) {
  is_target_set_ = true;
  target_ = num_chunks;
  is_blocked_ = false;
  failure_.clear();
  for (auto& [first, sent] : under_way_) sent.is_outdated = true;
}

std::uint32_t TierResizer::target() const {
  if (shape_.run == 0 || !is_target_set_) return shape_.first_chunks;
  return std::clamp(target_, std::min(shape_.run, shape_.max_chunks), shape_.max_chunks);
}

ChunkOrder TierResizer::order_for(std::uint32_t first, ChunkChange change) const {
  return {ChunkId(first), std::min(shape_.run, shape_.max_chunks - first), change};
}

void TierResizer::plan(StepPlan& plan) {
  if (shape_.run == 0 || !is_target_set_) return;
  for (const std::uint32_t first : std::exchange(to_take_back_, {})) {
    send(plan, order_for(first, ChunkChange::kRetire));
  }
  retire(plan);
  restore(plan);
}

void TierResizer::send(StepPlan& plan, const ChunkOrder& order) {
  UnderWay& sent = under_way_[order.first.value()];
  sent = {order};
  for (std::uint32_t rank = 0; rank < world_size_; ++rank) sent.silent.insert(RankId(rank));
  (order.change == ChunkChange::kRetire ? num_retiring_ : num_restoring_) += order.count;
  plan.chunks.push_back(order);
}

void TierResizer::retire(StepPlan& plan) {
  is_blocked_ = false;
  for (std::uint32_t num_gone = 0; num_in_use() > target() && num_gone < kMostOfStep;) {
    // What is left is one run, or the short one at the end.
    if (num_in_use() <= shape_.run || under_way_.size() >= kMostUnderWay) return;
    const auto chunks = chunks_.retire_coldest(shape_.run);
    if (!chunks) {
      is_blocked_ = true;
      return;
    }
    const ChunkOrder order = order_for(chunks->begin.value(), ChunkChange::kRetire);
    num_gone += order.count;
    if (chunks->begin.value() < shape_.first_chunks) {
      num_first_out_ += order.count;
    } else {
      num_others_in_use_ -= order.count;
    }
    send(plan, order);
  }
}

bool TierResizer::can_restore() const {
  if (retired_.empty()) return false;
  const std::uint32_t first = *retired_.begin();
  if (first >= shape_.first_chunks && !have_grown_) return false;
  const std::uint32_t count = order_for(first, ChunkChange::kRestore).count;
  return num_in_use() + num_restoring_ + count <= target();
}

void TierResizer::restore(StepPlan& plan) {
  while (under_way_.size() < kMostUnderWay && can_restore()) {
    const std::uint32_t first = *retired_.begin();
    retired_.erase(retired_.begin());
    send(plan, order_for(first, ChunkChange::kRestore));
  }
}

bool TierResizer::mark(RankId rank, const ChunkEnded& ended) {
  const auto found = under_way_.find(ended.order.first.value());
  if (found == under_way_.end() || found->second.order != ended.order) return false;
  if (found->second.silent.erase(rank) == 0) return false;
  if (!ended.failure.empty() && found->second.failure.empty()) {
    found->second.failure = "rank " + std::to_string(rank.value()) + ": " + ended.failure;
  }
  return true;
}

void TierResizer::settle() {
  for (auto at = under_way_.begin(); at != under_way_.end();) {
    if (!at->second.silent.empty()) {
      ++at;
      continue;
    }
    const UnderWay ended = std::move(at->second);
    at = under_way_.erase(at);
    count(ended.order);
    if (!ended.is_outdated && !ended.failure.empty()) failure_ = ended.failure;
    const std::uint32_t first = ended.order.first.value();
    if (ended.order.change == ChunkChange::kRetire) {
      retired_.insert(first);
    } else if (ended.failure.empty()) {
      chunks_.restore({ended.order.first, ChunkId(first + ended.order.count)});
      if (first < shape_.first_chunks) {
        num_first_out_ -= ended.order.count;
      } else {
        num_others_in_use_ += ended.order.count;
      }
    } else {
      to_take_back_.insert(first);
      // The ranks get no more orders to restore until the next set_target().
      if (!ended.is_outdated) target_ = std::min(target_, num_in_use() + num_restoring_);
    }
  }
}

void TierResizer::count(const ChunkOrder& order) {
  (order.change == ChunkChange::kRetire ? num_retiring_ : num_restoring_) -= order.count;
}

TierSize TierResizer::size() const {
  TierSize now;
  now.num_chunks = num_in_use();
  now.target_chunks = target();
  now.max_chunks = shape_.run == 0 ? shape_.first_chunks : shape_.max_chunks;
  now.chunks_per_run = shape_.run;
  now.num_retiring = num_retiring_;
  now.num_restoring = num_restoring_;
  now.is_blocked = is_blocked_;
  now.is_at_work = !under_way_.empty() || !to_take_back_.empty() || can_restore() ||
                   (num_in_use() > std::max(target(), shape_.run) && !is_blocked_);
  now.is_at_work = now.is_at_work && shape_.run != 0 && is_target_set_;
  now.failure = failure_;
  for (const auto& [first, sent] : under_way_) {
    now.silent_ranks.insert(now.silent_ranks.end(), sent.silent.begin(), sent.silent.end());
  }
  std::sort(now.silent_ranks.begin(), now.silent_ranks.end());
  now.silent_ranks.erase(std::unique(now.silent_ranks.begin(), now.silent_ranks.end()),
                         now.silent_ranks.end());
  return now;
}

}  // namespace kvferry::connector
