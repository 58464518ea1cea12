// SPDX-License-Identifier: Apache-2.0
#include "plan_mutator.hpp"

#include <limits>
#include <string>
#include <vector>

namespace kvferry::fuzz {
namespace {

using connector::ClassBlocks;
using connector::LoadOrder;
using connector::StepPlan;
using connector::StoreOrder;
using connector::StoreReadiness;

constexpr std::size_t kMostOrders = 6;

/// Draws of one plan's parts.
class Draw {
 public:
  explicit Draw(std::mt19937_64& random) : random_(random) {}

  std::uint64_t below(std::uint64_t end) { return random_() % end; }
  /// Below `end` mostly.
  std::uint64_t number(std::uint64_t end) { return below(24) == 0 ? random_() : below(end); }

  TransferId transfer() { return TransferId(number(10)); }
  SlabClassId slab_class() { return SlabClassId(static_cast<std::uint32_t>(number(2))); }
  std::vector<BlockSlot> blocks() {
    std::vector<BlockSlot> blocks(below(5));
    for (BlockSlot& pair : blocks) pair = this->pair();
    return blocks;
  }
  BlockSlot pair() {
    return {BlockId(static_cast<std::uint32_t>(number(12))),
            SlotId(static_cast<std::uint32_t>(number(13))), number(4)};
  }
  StoreOrder store() {
    return {transfer(),
            {},
            slab_class(),
            below(2) == 0 ? StoreReadiness::kNow : StoreReadiness::kAfterForward,
            blocks()};
  }
  LoadOrder load() {
    LoadOrder order{transfer(), {}, {}};
    for (std::uint64_t i = below(3); i > 0; --i) order.parts.push_back({slab_class(), blocks()});
    return order;
  }
  connector::ChunkOrder chunks() {
    return {ChunkId(static_cast<std::uint32_t>(number(6))), static_cast<std::uint32_t>(number(7)),
            static_cast<connector::ChunkChange>(below(2))};
  }
  connector::FailureNotice notice() { return {transfer(), std::string(1 + below(2), 'r')}; }

 private:
  std::mt19937_64& random_;
};

/// Any element changed by `change`, or one made by `make` where there is none.
template <class T, class Change, class Make>
void change_one(std::vector<T>& list, Draw& draw, Change&& change, Make&& make) {
  if (list.empty()) {
    list.push_back(make());
  } else {
    change(list[draw.below(list.size())]);
  }
}

/// One more, one less, or one twice.
template <class T, class Make>
void change_length(std::vector<T>& list, Draw& draw, Make&& make) {
  const std::uint64_t what = draw.below(4);
  if (list.empty() || (what < 2 && list.size() < kMostOrders)) {
    list.push_back(make());
  } else if (what == 2 && list.size() < kMostOrders) {
    list.push_back(T(list[draw.below(list.size())]));
  } else {
    list.erase(list.begin() + static_cast<std::ptrdiff_t>(draw.below(list.size())));
  }
}

void change_blocks(std::vector<BlockSlot>& blocks, Draw& draw) {
  if (draw.below(2) == 0) return change_length(blocks, draw, [&] { return draw.pair(); });
  change_one(
      blocks, draw, [&](BlockSlot& pair) { pair = draw.pair(); }, [&] { return draw.pair(); });
}

void change_store(StoreOrder& order, Draw& draw) {
  switch (draw.below(4)) {
    case 0:
      order.transfer = draw.transfer();
      return;
    case 1:
      order.slab_class = draw.slab_class();
      return;
    default:
      change_blocks(order.blocks, draw);
  }
}

void change_load(LoadOrder& order, Draw& draw) {
  const auto part = [&] { return ClassBlocks{draw.slab_class(), draw.blocks()}; };
  switch (draw.below(4)) {
    case 0:
      order.transfer = draw.transfer();
      return;
    case 1:
      return change_length(order.parts, draw, part);
    default:
      change_one(
          order.parts, draw, [&](ClassBlocks& of) { change_blocks(of.blocks, draw); }, part);
  }
}

}  // namespace

void mutate(StepPlan& plan, std::mt19937_64& random) {
  Draw draw(random);
  const auto store = [&] { return draw.store(); };
  const auto load = [&] { return draw.load(); };
  switch (draw.below(9)) {
    case 0:
      return change_length(plan.stores, draw, store);
    case 1:
      return change_length(plan.loads, draw, load);
    case 2:
      return change_length(plan.cancels, draw, [&] { return draw.transfer(); });
    case 3:
      return change_length(plan.notices, draw, [&] { return draw.notice(); });
    case 4:
      return change_length(plan.chunks, draw, [&] { return draw.chunks(); });
    case 5:
    case 6:
      return change_one(
          plan.stores, draw, [&](StoreOrder& one) { change_store(one, draw); }, store);
    default:
      return change_one(
          plan.loads, draw, [&](LoadOrder& one) { change_load(one, draw); }, load);
  }
}

}  // namespace kvferry::fuzz
