// SPDX-License-Identifier: Apache-2.0
#include "decision_journal.hpp"

#include "kvferry/connector/wire/recorded_plan.hpp"

#include <algorithm>

namespace kvferry::connector {

using cpu_tier::KeyMove;
using cpu_tier::MoveKind;
using recorder::EventKind;
using recorder::halves;
using recorder::kNoFlags;
using recorder::Recorder;

namespace {

/// Keys of one event, so that it fits into the smallest ring.
constexpr std::size_t kMostKeys = 256;

recorder::Leaving leaving_of(MoveKind kind) {
  switch (kind) {
    case MoveKind::kForgotten:
      return recorder::Leaving::kForgotten;
    case MoveKind::kChunkGone:
      return recorder::Leaving::kChunkGone;
    case MoveKind::kWithdrawn:
      return recorder::Leaving::kDamaged;
    case MoveKind::kCommitted:
    case MoveKind::kCame:
    case MoveKind::kEvicted:
      break;
  }
  return recorder::Leaving::kEvicted;
}

}  // namespace

void DecisionJournal::found_nothing(const Request* request) {
  if (to_ == nullptr) return;
  to_->put(EventKind::kFound, kNoFlags, number_of(request), std::uint64_t{0});
}

void DecisionJournal::put_off(const Request& request) {
  if (to_ == nullptr) return;
  to_->put(EventKind::kFound, recorder::kPending, number_of(&request), std::uint64_t{0});
}

void DecisionJournal::found(const Request& request, const LookupAnswer& answer,
                            std::optional<std::uint32_t> tokens, const Request* awaited) {
  if (to_ == nullptr) return;
  if (tokens) {
    to_->put(EventKind::kFound, kNoFlags, number_of(&request), halves(*tokens, answer.first),
             halves(answer.end, answer.full_end));
  } else {
    to_->put(EventKind::kFound, recorder::kPending, number_of(&request), halves(0, answer.first),
             halves(answer.end, answer.full_end), halves(number_of(awaited), 0));
  }
}

void DecisionJournal::missing(const Request& request, const BlockGroups& groups,
                              const LookupAnswer& answer, WeightsId weights) {
  if (to_ == nullptr || !answer.missing) return;
  const auto [group, block] = *answer.missing;
  const cpu_tier::BlockKey& key = request.keys_of(group)[block];
  const cpu_tier::BlockKey engines = key.mixed_with(weights);
  to_->put(EventKind::kMissing, kNoFlags, number_of(&request), key.mixed(), engines.folded_hash(),
           std::uint64_t{engines.group} << 16U | engines.hash_bytes,
           halves(group.value(), block * groups.block_length(group)));
}

void DecisionJournal::load_begun(const Request& request, std::uint32_t first, std::uint32_t end,
                                 bool has_lease) {
  if (to_ == nullptr) return;
  to_->put(EventKind::kLoadBegun, has_lease ? kNoFlags : recorder::kFailed, number_of(&request),
           request.load.value(), halves(first, end));
}

void DecisionJournal::load_ended(RequestId request, TransferId load, recorder::LoadFate fate) {
  if (to_ == nullptr) return;
  to_->put(EventKind::kLoadEnded, static_cast<std::uint8_t>(fate), number_of(request),
           load.value());
}

void DecisionJournal::skipped(recorder::Skip why, RequestId request,
                              std::span<const cpu_tier::BlockKey> keys) {
  if (to_ == nullptr) return;
  while (!keys.empty()) {
    const std::size_t count = std::min(keys.size(), kMostKeys);
    Recorder::Draft draft =
        to_->draft(EventKind::kSkipped, static_cast<std::uint8_t>(why), number_of(request), count);
    draft.add_words(count, [&](std::size_t i) { return keys[i].mixed(); });
    draft.end();
    keys = keys.subspan(count);
  }
}

void DecisionJournal::store_ended(TransferId store, std::size_t num_stored, std::size_t num_skipped,
                                  bool failed) {
  if (to_ == nullptr) return;
  to_->put(EventKind::kStoreEnded, failed ? recorder::kFailed : kNoFlags, 0, store.value(),
           halves(static_cast<std::uint32_t>(num_stored), static_cast<std::uint32_t>(num_skipped)));
}

void DecisionJournal::aborted(std::span<const TransferId> stores) {
  if (to_ != nullptr) put_transfers(*to_, EventKind::kAborted, stores);
}

void DecisionJournal::planned(const StepPlan& plan) {
  if (to_ != nullptr) put_plan(*to_, plan);
}

void DecisionJournal::moved(cpu_tier::Tier& tier) {
  if (to_ == nullptr) return;
  cpu_tier::TierMoves of(tier);
  for (std::uint32_t i = 0; i < tier.num_classes(); ++i) {
    of.take(SlabClassId(i), moves_);
    put_moves(SlabClassId(i), moves_);
  }
}

void DecisionJournal::put_moves(SlabClassId of, std::span<const KeyMove> moves) {
  while (!moves.empty()) {
    const MoveKind kind = moves.front().kind;
    const auto end = std::find_if(moves.begin(), moves.end(),
                                  [kind](const KeyMove& one) { return one.kind != kind; });
    const std::size_t count =
        std::min<std::size_t>(static_cast<std::size_t>(end - moves.begin()), kMostKeys);
    const bool came = kind == MoveKind::kCame;
    Recorder::Draft draft =
        to_->draft(came ? EventKind::kCame : EventKind::kLeft,
                   came ? std::uint8_t{kNoFlags} : static_cast<std::uint8_t>(leaving_of(kind)),
                   of.value(), 2 * count);
    draft.add_words(2 * count, [&](std::size_t i) {
      return i % 2 == 0 ? moves[i / 2].key : halves(moves[i / 2].slot.value(), 0);
    });
    draft.end();
    moves = moves.subspan(count);
  }
}

}  // namespace kvferry::connector
