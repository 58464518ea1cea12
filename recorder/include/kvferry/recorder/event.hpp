// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace kvferry::recorder {

/// What an event says. The numbers are part of the file's format: none is used twice, and a new
/// kind gets the next one. At most kMaxKinds.
///
/// Inputs (is_input()) are the calls of a SchedulerEngine's functions, in their order, and the work
/// of a shared tier's keeper between them. The events
/// up to the next input belong to that call: the answers that it got from outside, and what it
/// decided. A rank's recording has the plans that it got, and what it did. An event's *number* is
/// the request's (RequestId, its low 32 bits; 0: unknown to the scheduler side), unless the list
/// below says otherwise. Below, a word has 64 bits; `a | b` are two halves of a word, the low one
/// first. Pairs of 32-bit values lie in one word; the last half is 0 if their number is odd. Keys
/// are BlockKey::mixed(), which says which block under which weights; times are nanoseconds of the
/// steady clock.
enum class EventKind : std::uint8_t {
  kNone = 0,

  // ---- inputs ----

  /// A request arrives. Words: time; max_load | max_store; stable_hash() of its engine id; then the
  /// first 64 bytes of that id, zero-padded. Flags: kIdWasCut.
  kRequest = 1,
  /// Hints of its client. Words: stable_hash() of the session's name, 0: none; then for each hint
  /// its action | 0, its time to live, stable_hash() of its session's name.
  kHints = 2,
  /// Words: time; num_local_tokens | num_tokens.
  kLookup = 3,
  /// The engine allocated blocks for a load. Words: time; num_external_tokens | num_groups; then a
  /// table (see kScheduled).
  kAllocated = 4,
  /// Word: num_local_tokens | 0.
  kLocal = 5,
  /// Another connector failed to load blocks. Number: how many. Words: block ids, in pairs.
  kBlocksInvalid = 6,
  kPreempted = 7,
  /// The request is in a step. Words: num_computed | num_scheduled; with kHasDrafts num_drafts |
  /// the number of hashes that the engine knows (0: not asked); with kHasPrompt num_prompt | 0;
  /// with kHasBlocks the table: 32-bit values, for each group the number of its blocks and then
  /// their ids.
  kScheduled = 8,
  /// Words: group | block; num_tokens | 0.
  kState = 9,
  /// A plan is made. Number: its sequence number. Word: time.
  kPlan = 10,
  /// The reports of one step. Number: how many. Word: time. A kReport follows for each.
  kFold = 11,
  /// Words: time; num_tokens | 0.
  kFinished = 12,
  /// Word: time.
  kReset = 13,
  /// The model has other weights. Flags: kForgotten. Words: time; the weights' id.
  kWeights = 14,
  /// Number: the chunks that the tier is to have.
  kResize = 15,
  /// The engine's pool is known (number 1) or gone (number 0).
  kPool = 16,
  kTakeKeyEvents = 17,
  /// A shared tier's keeper did its work. Word: time.
  kTended = 18,

  // ---- answers from outside ----

  /// Number: the length in bytes. Words: the bytes of a StepReport, zero-padded.
  kReport = 20,
  /// Hashes that the scheduler side read. Words: hashes known now | length of every hash in bytes
  /// (0: none was read); first index | step between indices; then a word for each hash
  /// (BlockKey::folded_hash() without weights; BlockKey::mixed_of() makes a key of it). Longer
  /// lists take several events.
  kHashes = 21,
  /// A reading of the clock that is not in its call's own event. Word: time.
  kTime = 22,
  /// Whether the pool holds a block under its key. Number: 1 or 0.
  kPoolHolds = 23,
  /// The same for many blocks. Number: how many. Words: a bit for each, from the lowest on.
  kPoolMarks = 24,
  /// The pool's key of a block. Number: the block. Words: none, or two: the key's folded hash, and
  /// weights << 32 | group << 16 | hash_bytes.
  kPoolKey = 25,
  /// What the engines that share the tier were asked, and the answer. Flags: PeerAnswer, which says
  /// what number and words are.
  kPeers = 26,

  // ---- decisions ----

  /// The answer of a lookup. Flags: kPending. Words: tokens to load | position of the first one;
  /// position of the end | position up to which full attention has all; with kPending the number of
  /// the request whose load it waits for (0: it waits for ranks) | 0. Only one word, which is 0:
  /// the tier was not asked; with kPending because loaded requests behind it come first. Positions
  /// count hashes.
  kFound = 32,
  /// A store in the plan. Number: of the owner, 0: blocks of several requests. Flags: kReadyNow.
  /// Words: transfer; slab class | number of blocks; then for each block its key, and block | slot.
  kStore = 33,
  /// A load in the plan. Words: transfer; then for each class: slab class | number of blocks, and
  /// for each block block | slot.
  kLoad = 34,
  /// Words: transfers that are cancelled.
  kCancels = 35,
  /// Words: loads that have waited for too long.
  kExpiries = 36,
  /// A failed load of which the ranks tell the engine. Word: transfer.
  kNotice = 37,
  /// Chunks that change. Flags: kRestored. Words: first | count.
  kChunks = 38,
  /// The end of a plan. Number: the plan's sequence number. Word: how many kStore | how many kLoad.
  kPlanned = 39,
  /// A load begins. Flags: kFailed if there is nothing to load. Words: transfer; first position |
  /// end position.
  kLoadBegun = 40,
  /// Blocks that are not stored, or not now. Flags: Skip. Number: the request, 0: unknown or
  /// several. Words: keys.
  kSkipped = 41,
  /// Keys that are no longer readable. Flags: Leaving. Number: the slab class. Words: for each its
  /// key, and slot | 0.
  kLeft = 42,
  /// Keys that became readable without a store of this engine (in a shared tier). Those of a store
  /// become readable with its kStoreEnded. Number: the slab class. Words: for each its key, and
  /// slot | 0.
  kCame = 43,
  /// A store has ended on every rank. Flags: kFailed. Words: transfer; blocks stored | blocks that
  /// ranks skipped for want of room in their rings.
  kStoreEnded = 44,
  /// Words: stores that are aborted (reset, other weights, blocks that turned out wrong).
  kAborted = 45,
  /// A load has ended on every rank. Flags: LoadFate. Word: transfer.
  kLoadEnded = 46,
  /// The engine is told that a load has ended. Number: the request.
  kTold = 47,
  /// What a rank announced of an old incarnation, and the engine is not told. Number: the request.
  kStale = 48,
  /// The call threw. Number: the exception's class (ErrorClass). Words: its text, at
  /// most kMaxText bytes, zero-padded. Flags: kTextWasCut.
  kThrew = 49,
  /// A broken invariant stopped the process. Words: as kThrew.
  kBroken = 50,
  /// An event that was too long for the ring is missing here. Number: its kind.
  kLost = 51,
  /// Why the answer before is no longer: a block that the tier did not have. Number: the request.
  /// Words: its key; BlockKey::folded_hash() of its key without weights; group << 16 | hash_bytes;
  /// group | its first position.
  kMissing = 52,
  /// What was under way when the call threw. Number: the text's length in bytes. Words: the text
  /// (SchedulerEngine::books()), zero-padded.
  kBooks = 53,

  // ---- a rank ----

  /// A rank got a plan. Number: the plan's sequence number. Word: time. The plan's orders follow,
  /// as the scheduler side records them: kStore to kPlanned. If the rank refuses it, a kThrew
  /// follows.
  kBound = 54,
  /// The forward pass has ended, and the step has stores that waited for it. Word: time.
  kSaved = 55,
  /// A store has got all that it will get of its blocks. Flags: kHasEnded if this rank copies none
  /// of them. Words: transfer; how many of its first blocks need no more work of this rank | blocks
  /// of the order.
  kGathered = 56,
  /// The rank saw that a transfer ended. Flags: Outcome, and kIsLoad. Number: damaged slots. Words:
  /// time; transfer; nanoseconds until its first copy; nanoseconds that the device took; bytes;
  /// then for each damaged slot slab class | slot.
  kCopied = 57,
  /// A report to the scheduler side. Number: its bytes. Word: time.
  kReported = 58,
  /// The engine took its KV cache away (number 1), or has given it back (number 0). Word: time.
  kAsleep = 59
};
inline constexpr std::uint32_t kMaxKinds = 64;

/// Flags of the kinds above.
enum Flags : std::uint8_t {
  kNoFlags = 0,
  kIdWasCut = 1,
  kReplaces = 1,    ///< kScheduled: the blocks are the request's whole table.
  kHasDrafts = 2,   ///< kScheduled.
  kHasPrompt = 4,   ///< kScheduled.
  kHasBlocks = 8,   ///< kScheduled.
  kOddGroups = 16,  ///< kScheduled: not as many groups as there are; a word with their number is
                    ///< before the table.
  kForgotten = 1,   ///< kWeights.
  kPending = 1,     ///< kFound.
  kReadyNow = 1,    ///< kStore.
  kRestored = 1,    ///< kChunks; otherwise they are retired.
  kFailed = 1,      ///< kStoreEnded, kLoadBegun.
  kTextWasCut = 1,  ///< kThrew, kBroken.
  kHasEnded = 1,    ///< kGathered.
  kIsLoad = 4,      ///< kCopied.
};

/// Why a block is not stored, or not now (kSkipped).
enum class Skip : std::uint8_t {
  kDeclined = 0,     ///< The tier's policy does not admit it.
  kDeferred = 1,     ///< It waits in the backlog: the plan, and so the ranks' rings, had no room.
  kExhausted = 2,    ///< It waits in the backlog: the tier had no slot.
  kReallocated = 3,  ///< Its GPU block got another content before its turn.
  kUnwanted = 4,     ///< Its request is not to be stored that far.
  kRingFull = 5      ///< A rank had no room in its ring; it waits in the backlog again.
};

/// Why a key is no longer readable (kLeft).
enum class Leaving : std::uint8_t {
  kEvicted = 0,    ///< For a store, or because its class lost a chunk.
  kForgotten = 1,  ///< A reset, other weights, or a failed load.
  kChunkGone = 2,  ///< Its chunk left the class.
  kDamaged = 3,    ///< A rank found that its bytes are not what was stored (the kReport says which
                   ///< rank, and in which load).
};

/// What a tier has learned from its peers (kPeers; cpu_tier::PeerSlots and cpu_tier::Peers). Slots
/// are in pairs, like block ids.
enum class PeerAnswer : std::uint8_t {
  /// For how many of the given slots a change was possible. Words: if for some of them, but not for
  /// all, the slots in their new order, in which these come first.
  kRefilled = 0,
  kEvicted = 1,
  kForgotten = 2,
  kFreed = 3,
  /// Whether a peer reads any slot of a chunk. Number: 1 or 0.
  kRead = 4,
  /// The keys in a chunk that was taken. Number: how many. Words: for each the index of its slot in
  /// the chunk | group << 16 and hash_bytes; BlockKey::folded_hash(); BlockKey::weights.
  kKeys = 5,
  /// Slots of peers that a lookup found. Number: how many. Words: for each the index of its key |
  /// slot.
  kFound = 6,
  /// Keys that peers have. Number: how many. Words: their indices, in pairs.
  kHeld = 7,
  /// Slots that peers have withdrawn. Number: how many; not 0. Words: the class, as in kTaken; the
  /// slots.
  kWithdrawn = 8,
  /// Number: about how many chunks could be taken.
  kObtainable = 9,
  /// A chunk that was taken. Number: 1, or 0 for none. Words: chunk | whether its contents can be
  /// used, 1 or 0; and then its number of slots | which of the classes with that number.
  kTaken = 10,
  /// Whether chunks could be divided, or given up. Number: 1 or 0.
  kDivided = 11,
  kGivenUp = 12,
  /// Number: the chunks that peers should have; not 0.
  kWanted = 13
};
inline constexpr std::size_t kNumPeerAnswers = 14;

/// How a load has ended (kLoadEnded).
enum class LoadFate : std::uint8_t {
  kLoaded = 0,
  kFailed = 1,
  kAborted = 2,  ///< Its request had been finished.
  kStale = 3     ///< Its incarnation is gone.
};

inline constexpr std::size_t kMaxIdBytes = 64;
inline constexpr std::size_t kMaxText = 512;

/// The first word of an event: kind (6 bits), flags (6 bits), number of words with this one (20
/// bits), number (32 bits).
class EventHead {
 public:
  static constexpr std::uint32_t kMaxWords = (1U << 20U) - 1;

  constexpr EventHead(EventKind kind, std::uint8_t flags, std::uint32_t num_words,
                      std::uint32_t number)
      : word_(static_cast<std::uint64_t>(kind) | std::uint64_t{flags & 63U} << 6U |
              std::uint64_t{num_words} << 12U | std::uint64_t{number} << 32U) {}
  constexpr explicit EventHead(std::uint64_t word) : word_(word) {}

  [[nodiscard]] constexpr EventKind kind() const { return static_cast<EventKind>(word_ & 63U); }
  [[nodiscard]] constexpr std::uint8_t flags() const { return word_ >> 6U & 63U; }
  [[nodiscard]] constexpr bool has(Flags flag) const { return (flags() & flag) != 0; }
  [[nodiscard]] constexpr std::uint32_t num_words() const { return word_ >> 12U & kMaxWords; }
  [[nodiscard]] constexpr std::uint32_t number() const {
    return static_cast<std::uint32_t>(word_ >> 32U);
  }
  [[nodiscard]] constexpr std::uint64_t word() const { return word_; }

 private:
  std::uint64_t word_;
};

/// An event of a recording, as long as the recording lives.
struct Event {
  /// Its place: words that were recorded before it, since the beginning.
  std::uint64_t position = 0;
  EventHead head{0};
  std::span<const std::uint64_t> words;  ///< Without the head.

  [[nodiscard]] EventKind kind() const { return head.kind(); }
  [[nodiscard]] std::uint32_t number() const { return head.number(); }
  [[nodiscard]] bool has(Flags flag) const { return head.has(flag); }
  [[nodiscard]] std::uint32_t low(std::size_t word) const {
    return static_cast<std::uint32_t>(words[word]);
  }
  [[nodiscard]] std::uint32_t high(std::size_t word) const {
    return static_cast<std::uint32_t>(words[word] >> 32U);
  }
  /// The 32-bit values, two in a word, low ones first.
  [[nodiscard]] std::size_t num_halves() const { return 2 * words.size(); }
  [[nodiscard]] std::uint32_t half(std::size_t i) const {
    return i % 2 == 0 ? low(i / 2) : high(i / 2);
  }
};

[[nodiscard]] constexpr std::uint64_t halves(std::uint32_t low, std::uint32_t high) {
  return low | std::uint64_t{high} << 32U;
}

/// Whether it is a call of the scheduler side.
[[nodiscard]] constexpr bool is_input(EventKind kind) {
  return kind >= EventKind::kRequest && kind <= EventKind::kTended;
}
/// Whether it is a call of the engine. A shared tier's keeper is not the engine: it goes on after
/// the engine's last call.
[[nodiscard]] constexpr bool is_engine_call(EventKind kind) {
  return is_input(kind) && kind != EventKind::kTended;
}
/// Whether it is what a call read outside.
[[nodiscard]] constexpr bool is_answer(EventKind kind) {
  return kind >= EventKind::kReport && kind <= EventKind::kPeers;
}

/// Whether its first word is a time.
[[nodiscard]] bool has_time(EventKind kind);
/// The kind's name; "kind 63" for one that this version does not know.
[[nodiscard]] std::string name_of(EventKind kind);
/// Why the event cannot have been recorded so: too few words for its kind, or flags that it does
/// not have. Empty if it can, or if this version does not know the kind.
[[nodiscard]] std::string why_malformed(const Event& event);
/// The event in one line, for people. Any words give a text.
[[nodiscard]] std::string to_text(const Event& event);

}  // namespace kvferry::recorder
