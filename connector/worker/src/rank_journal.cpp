// SPDX-License-Identifier: Apache-2.0
#include "rank_journal.hpp"

#include "kvferry/connector/wire/recorded_plan.hpp"
#include "kvferry/recorder/recorded_error.hpp"

#include <chrono>

namespace kvferry::connector {

using recorder::EventKind;
using recorder::halves;
using recorder::kNoFlags;
using recorder::Recorder;

namespace {

std::uint64_t nanoseconds(std::chrono::nanoseconds of) {
  return static_cast<std::uint64_t>(of.count());
}

std::uint64_t now() { return nanoseconds(std::chrono::steady_clock::now().time_since_epoch()); }

}  // namespace

RankJournal::Watch::Watch(Recorder* to) : to_(to) {
  if (to_ != nullptr) before_ = recorder::set_witness(to_);
}

RankJournal::Watch::~Watch() {
  if (to_ != nullptr) recorder::set_witness(before_);
}

void RankJournal::bound(const StepPlan& plan) {
  if (!to_) return;
  to_->put(EventKind::kBound, kNoFlags, static_cast<std::uint32_t>(plan.seq.value()), now());
  put_plan(*to_, plan);
}

void RankJournal::saved() {
  if (to_) to_->put(EventKind::kSaved, kNoFlags, 0, now());
}

void RankJournal::gathered(TransferId store, std::uint32_t num_gathered, std::uint32_t num_ordered,
                           bool has_copies) {
  if (!to_) return;
  to_->put(EventKind::kGathered, has_copies ? kNoFlags : recorder::kHasEnded, 0, store.value(),
           halves(num_gathered, num_ordered));
}

void RankJournal::copied(const transfer::Completion& completion) {
  if (!to_) return;
  const bool is_load = completion.kind == transfer::TransferKind::kLoad;
  const auto flags = static_cast<std::uint8_t>(static_cast<unsigned>(completion.outcome) |
                                               (is_load ? unsigned{recorder::kIsLoad} : 0U));
  const std::size_t num_damaged = completion.damaged.size();
  Recorder::Draft draft = to_->draft(EventKind::kCopied, flags,
                                     static_cast<std::uint32_t>(num_damaged), 5 + num_damaged);
  draft.add(now());
  draft.add(completion.transfer.value());
  draft.add(nanoseconds(completion.queue_time));
  draft.add(nanoseconds(completion.device_time));
  draft.add(completion.bytes);
  draft.add_words(num_damaged, [&](std::size_t i) {
    return halves(completion.damaged[i].slab_class.value(), completion.damaged[i].slot.value());
  });
  draft.end();
}

void RankJournal::reported(std::size_t num_bytes) {
  if (!to_) return;
  to_->put(EventKind::kReported, kNoFlags, static_cast<std::uint32_t>(num_bytes), now());
}

void RankJournal::sleep_event(std::uint32_t is_asleep) {
  if (to_) to_->put(EventKind::kAsleep, kNoFlags, is_asleep, now());
}

void RankJournal::threw(const std::exception& error) {
  if (to_) recorder::put_error(*to_, error);
}

}  // namespace kvferry::connector
