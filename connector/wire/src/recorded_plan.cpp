// SPDX-License-Identifier: Apache-2.0
#include "kvferry/connector/wire/recorded_plan.hpp"

#include <algorithm>
#include <cstddef>

namespace kvferry::connector {

using recorder::EventKind;
using recorder::halves;
using recorder::kNoFlags;
using recorder::Recorder;

namespace {

/// Transfers of one event, so that it fits into the smallest ring.
constexpr std::size_t kMostTransfers = 256;

std::uint32_t count(const auto& of) { return static_cast<std::uint32_t>(of.size()); }

void put_store(Recorder& to, const StoreOrder& order) {
  const bool is_ready = order.readiness == StoreReadiness::kNow;
  Recorder::Draft draft = to.draft(EventKind::kStore, is_ready ? recorder::kReadyNow : kNoFlags,
                                   number_of(order.owner.request), 2 + 2 * order.blocks.size());
  draft.add(order.transfer.value());
  draft.add(halves(order.slab_class.value(), count(order.blocks)));
  draft.add_words(2 * order.blocks.size(), [&](std::size_t i) {
    const BlockSlot& one = order.blocks[i / 2];
    return i % 2 == 0 ? one.identity : halves(one.block.value(), one.slot.value());
  });
  draft.end();
}

void put_load(Recorder& to, const LoadOrder& order) {
  std::size_t num_words = 1;
  for (const ClassBlocks& part : order.parts) num_words += 1 + part.blocks.size();
  Recorder::Draft draft =
      to.draft(EventKind::kLoad, kNoFlags, number_of(order.owner.request), num_words);
  draft.add(order.transfer.value());
  for (const ClassBlocks& part : order.parts) {
    draft.add(halves(part.slab_class.value(), count(part.blocks)));
    draft.add_words(part.blocks.size(), [&](std::size_t i) {
      return halves(part.blocks[i].block.value(), part.blocks[i].slot.value());
    });
  }
  draft.end();
}

}  // namespace

void put_plan(Recorder& to, const StepPlan& plan) {
  for (const StoreOrder& order : plan.stores) put_store(to, order);
  for (const LoadOrder& order : plan.loads) put_load(to, order);
  put_transfers(to, EventKind::kCancels, plan.cancels);
  put_transfers(to, EventKind::kExpiries, plan.expiries);
  for (const FailureNotice& notice : plan.notices) {
    to.put(EventKind::kNotice, kNoFlags, 0, notice.transfer.value());
  }
  for (const ChunkOrder& order : plan.chunks) {
    to.put(EventKind::kChunks,
           order.change == ChunkChange::kRestore ? recorder::kRestored : kNoFlags, 0,
           halves(order.first.value(), order.count));
  }
  to.put(EventKind::kPlanned, kNoFlags, static_cast<std::uint32_t>(plan.seq.value()),
         halves(count(plan.stores), count(plan.loads)));
}

void put_transfers(Recorder& to, EventKind kind, std::span<const TransferId> transfers) {
  while (!transfers.empty()) {
    const std::size_t num_next = std::min(transfers.size(), kMostTransfers);
    Recorder::Draft draft = to.draft(kind, kNoFlags, 0, num_next);
    draft.add_words(num_next, [&](std::size_t i) { return transfers[i].value(); });
    draft.end();
    transfers = transfers.subspan(num_next);
  }
}

}  // namespace kvferry::connector
