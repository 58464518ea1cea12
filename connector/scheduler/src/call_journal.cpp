// SPDX-License-Identifier: Apache-2.0
#include "call_journal.hpp"

#include "kvferry/base/stable_hash.hpp"
#include "kvferry/recorder/recorded_error.hpp"

#include <algorithm>
#include <utility>

namespace kvferry::connector {

using recorder::EventKind;
using recorder::halves;
using recorder::kNoFlags;
using recorder::Recorder;

namespace {

/// Hashes of one event. A prompt of 8,192 hashes takes two.
constexpr std::size_t kMostHashes = 4096;

std::uint64_t session_mark(std::string_view session) {
  return session.empty() ? 0 : stable_hash(session);
}

/// 32-bit values that a table takes.
std::size_t size_of(GroupBlocks blocks) {
  std::size_t sum = blocks.size() + 1;
  for (const std::span<const BlockId> of_group : blocks) sum += of_group.size();
  return sum;
}

void add_table(Recorder::Draft& draft, GroupBlocks blocks) {
  for (const std::span<const BlockId> of_group : blocks) {
    draft.add_half(static_cast<std::uint32_t>(of_group.size()));
    draft.add_halves(of_group);
  }
}

}  // namespace

/// Records what the pool answers.
class CallJournal::WatchedPool final : public BlockPool {
 public:
  WatchedPool(Recorder& to, const BlockPool& pool) : to_(to), pool_(pool) {}

  [[nodiscard]] bool holds(BlockId block, const cpu_tier::BlockKey& key) const override {
    const bool held = pool_.holds(block, key);
    to_.put(EventKind::kPoolHolds, kNoFlags, held ? 1 : 0);
    return held;
  }
  void mark_held(std::span<const BlockId> blocks, std::span<const cpu_tier::BlockKey> keys,
                 std::span<std::uint8_t> held) const override {
    pool_.mark_held(blocks, keys, held);
    Recorder::Draft draft =
        to_.draft(EventKind::kPoolMarks, kNoFlags, static_cast<std::uint32_t>(blocks.size()),
                  (blocks.size() + 63) / 64);
    for (std::size_t first = 0; first < blocks.size(); first += 64) {
      std::uint64_t bits = 0;
      for (std::size_t i = first; i < std::min(blocks.size(), first + 64); ++i) {
        bits |= std::uint64_t{held[i]} << (i - first);
      }
      draft.add(bits);
    }
    draft.end();
  }
  [[nodiscard]] std::optional<cpu_tier::BlockKey> key(BlockId block) const override {
    std::optional<cpu_tier::BlockKey> key = pool_.key(block);
    if (key) {
      to_.put(
          EventKind::kPoolKey, kNoFlags, block.value(), key->folded_hash(),
          std::uint64_t{key->weights} << 32U | std::uint64_t{key->group} << 16U | key->hash_bytes);
    } else {
      to_.put(EventKind::kPoolKey, kNoFlags, block.value());
    }
    return key;
  }

 private:
  Recorder& to_;
  const BlockPool& pool_;
};

CallJournal::CallJournal(Recorder* to, Clock clock, std::size_t num_groups)
    : to_(to),
      clock_(clock ? std::move(clock) : Clock(std::chrono::steady_clock::now)),
      num_groups_(num_groups) {}

CallJournal::~CallJournal() {
  if (to_ != nullptr && recorder::witness() == to_) recorder::set_witness(nullptr);
}

std::uint64_t CallJournal::stamp() {
  recorder::set_witness(to_);
  now_ = clock_();
  is_stamped_ = true;
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(now_.time_since_epoch()).count());
}

CallJournal::TimePoint CallJournal::now() {
  if (!is_stamped_) to_->put(EventKind::kTime, kNoFlags, 0, stamp());
  return now_;
}

void CallJournal::request(RequestId next, std::string_view engine_id, const RequestLimits& limits) {
  if (to_ == nullptr) return;
  const bool is_cut = engine_id.size() > recorder::kMaxIdBytes;
  Recorder::Draft draft =
      to_->draft(EventKind::kRequest, is_cut ? recorder::kIdWasCut : kNoFlags, number_of(next),
                 3 + recorder::kMaxIdBytes / sizeof(std::uint64_t));
  draft.add(stamp());
  draft.add(halves(limits.max_load, limits.max_store));
  draft.add(stable_hash(engine_id));
  draft.add_text(engine_id.substr(0, recorder::kMaxIdBytes));
  draft.end();
}

void CallJournal::hints(const Request* request, std::string_view session,
                        std::span<const ClientHint> hints) {
  if (to_ == nullptr) return;
  is_stamped_ = false;
  Recorder::Draft draft =
      to_->draft(EventKind::kHints, kNoFlags, number_of(request), 1 + 3 * hints.size());
  draft.add(session_mark(session));
  for (const ClientHint& hint : hints) {
    draft.add(static_cast<std::uint64_t>(hint.action));
    draft.add(static_cast<std::uint64_t>(hint.time_to_live.count()));
    draft.add(session_mark(hint.session));
  }
  draft.end();
}

void CallJournal::lookup(const Request* request, std::uint32_t num_local,
                         std::uint32_t num_tokens) {
  if (to_ == nullptr) return;
  to_->put(EventKind::kLookup, kNoFlags, number_of(request), stamp(),
           halves(num_local, num_tokens));
}

void CallJournal::allocated(const Request* request, GroupBlocks tables,
                            std::uint32_t num_external) {
  if (to_ == nullptr) return;
  Recorder::Draft draft =
      to_->draft(EventKind::kAllocated, kNoFlags, number_of(request), 3 + size_of(tables) / 2);
  draft.add(stamp());
  draft.add(halves(num_external, static_cast<std::uint32_t>(tables.size())));
  add_table(draft, tables);
  draft.end();
}

void CallJournal::local(const Request* request, std::uint32_t num_local) {
  if (to_ == nullptr) return;
  is_stamped_ = false;
  to_->put(EventKind::kLocal, kNoFlags, number_of(request), halves(num_local, 0));
}

void CallJournal::blocks_invalid(std::span<const BlockId> blocks) {
  if (to_ == nullptr) return;
  is_stamped_ = false;
  Recorder::Draft draft =
      to_->draft(EventKind::kBlocksInvalid, kNoFlags, static_cast<std::uint32_t>(blocks.size()),
                 1 + blocks.size() / 2);
  draft.add_halves(blocks);
  draft.end();
}

void CallJournal::preempted(const Request* request) {
  simple(EventKind::kPreempted, number_of(request));
}

void CallJournal::scheduled_with(Request* request, TableUpdate update, GroupBlocks blocks,
                                 const StepTokens& tokens) {
  is_stamped_ = false;
  const bool is_odd = !blocks.empty() && blocks.size() != num_groups_;
  if (request != nullptr) request->had_drafts |= tokens.num_drafts > 0;
  // With drafts the call reads how many hashes there are.
  const bool has_drafts = tokens.num_drafts > 0 || (request != nullptr && request->had_drafts);
  const std::uint64_t head = halves(tokens.num_computed, tokens.num_scheduled);
  const auto flags = static_cast<std::uint8_t>(
      (update == TableUpdate::kReplace ? recorder::kReplaces : 0) |
      (has_drafts ? recorder::kHasDrafts : 0) | (tokens.num_prompt > 0 ? recorder::kHasPrompt : 0) |
      (blocks.empty() ? 0 : recorder::kHasBlocks) | (is_odd ? recorder::kOddGroups : 0));
  if (flags == recorder::kHasBlocks && blocks.size() == 1 && blocks[0].size() == 1) {
    to_->put(EventKind::kScheduled, flags, number_of(request), head,
             halves(1, blocks[0].front().value()));
    return;
  }
  Recorder::Draft draft =
      to_->draft(EventKind::kScheduled, flags, number_of(request), 5 + size_of(blocks) / 2);
  draft.add(head);
  if (has_drafts) {
    const std::size_t num_hashes = request == nullptr ? 0 : request->hashes->size();
    draft.add(halves(tokens.num_drafts, static_cast<std::uint32_t>(num_hashes)));
  }
  if (tokens.num_prompt > 0) draft.add(halves(tokens.num_prompt, 0));
  if (is_odd) draft.add(blocks.size());
  add_table(draft, blocks);
  draft.end();
}

void CallJournal::state(const Request* request, GroupId group, BlockId block,
                        std::uint32_t num_tokens) {
  if (to_ == nullptr) return;
  is_stamped_ = false;
  to_->put(EventKind::kState, kNoFlags, number_of(request), halves(group.value(), block.value()),
           halves(num_tokens, 0));
}

void CallJournal::plan(PlanSeq next) {
  if (to_ == nullptr) return;
  to_->put(EventKind::kPlan, kNoFlags, static_cast<std::uint32_t>(next.value()), stamp());
}

void CallJournal::fold(std::span<const std::span<const std::byte>> reports) {
  if (to_ == nullptr) return;
  to_->put(EventKind::kFold, kNoFlags, static_cast<std::uint32_t>(reports.size()), stamp());
  for (const std::span<const std::byte> report : reports) {
    Recorder::Draft draft =
        to_->draft(EventKind::kReport, kNoFlags, static_cast<std::uint32_t>(report.size()),
                   1 + report.size() / sizeof(std::uint64_t));
    draft.add_text({reinterpret_cast<const char*>(report.data()), report.size()});
    draft.end();
  }
}

void CallJournal::finished(const Request* request, std::uint32_t num_tokens) {
  if (to_ == nullptr) return;
  to_->put(EventKind::kFinished, kNoFlags, number_of(request), stamp(), halves(num_tokens, 0));
}

void CallJournal::reset() {
  if (to_ == nullptr) return;
  to_->put(EventKind::kReset, kNoFlags, 0, stamp());
}

void CallJournal::weights(WeightsId to, bool forgets) {
  if (to_ == nullptr) return;
  to_->put(EventKind::kWeights, forgets ? recorder::kForgotten : kNoFlags, 0, stamp(), to.value());
}

void CallJournal::tended() {
  if (to_ == nullptr) return;
  to_->put(EventKind::kTended, kNoFlags, 0, stamp());
}

void CallJournal::simple(EventKind kind, std::uint32_t number) {
  if (to_ == nullptr) return;
  is_stamped_ = false;
  to_->put(kind, kNoFlags, number);
}

void CallJournal::threw(const std::exception& error) {
  if (to_ == nullptr) return;
  recorder::put_error(*to_, error);
}

void CallJournal::books(std::string_view text) {
  if (to_ == nullptr) return;
  recorder::put_text(*to_, EventKind::kBooks, static_cast<std::uint32_t>(text.size()), text,
                     text.size());
}

void CallJournal::hashes(const Request& request, const BlockGroups& groups, WeightsId weights,
                         std::uint32_t before) {
  const std::uint32_t finest = groups.block_length(groups.finest());
  hashes_of(request, groups.finest(), finest, weights,
            groups.num_complete(groups.finest(), before));
  for (const GroupId group : groups.ids()) {
    const std::uint32_t length = groups.block_length(group);
    if (length % finest == 0) continue;  // Its hashes are among those of the finest one.
    hashes_of(request, group, length, weights, groups.num_complete(group, before));
  }
}

void CallJournal::hashes_of(const Request& request, GroupId group, std::uint32_t length,
                            WeightsId weights, std::size_t first) {
  const std::span<const cpu_tier::BlockKey> keys = request.keys_of(group);
  const std::uint32_t hash_bytes = keys.empty() ? 0 : keys.front().hash_bytes;
  if (first + 1 == keys.size()) {  // As decoding requests get them.
    to_->put(EventKind::kHashes, kNoFlags, number_of(&request),
             halves(request.num_hashes, hash_bytes),
             halves((static_cast<std::uint32_t>(first) + 1) * length - 1, length),
             keys.back().folded_hash() ^ weights.value());
    return;
  }
  do {
    const std::size_t count = std::min(keys.size() - first, kMostHashes);
    Recorder::Draft draft =
        to_->draft(EventKind::kHashes, kNoFlags, number_of(&request), 2 + count);
    draft.add(halves(request.num_hashes, hash_bytes));
    draft.add(halves((static_cast<std::uint32_t>(first) + 1) * length - 1, length));
    draft.add_words(count, [&, of = keys.subspan(first)](std::size_t i) {
      return of[i].folded_hash() ^ weights.value();
    });
    draft.end();
    first += count;
  } while (first < keys.size());
}

BlockPool* CallJournal::watched(BlockPool* pool) {
  if (to_ == nullptr) return pool;
  pool_ = pool == nullptr ? nullptr : std::make_unique<WatchedPool>(*to_, *pool);
  return pool_.get();
}

}  // namespace kvferry::connector
