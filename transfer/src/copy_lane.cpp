// SPDX-License-Identifier: Apache-2.0
#include "copy_lane.hpp"

#include "kvferry/base/batch_copy.hpp"
#include "kvferry/base/check.hpp"
#include "kvferry/base/test_hooks.hpp"

#include "in_doubt.hpp"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace kvferry::transfer {
namespace {

using gpu::CopyPath;

CopyPaths paths_of(const gpu::DeviceTraits& traits, gpu::CopyDirection direction,
                   const StagingRing* staging) {
  CopyPaths paths{CopyPath::kPerRun};
  if (traits.max_batch_runs != 0) paths.add(CopyPath::kBatch);
  // A store's gather has packed its fragments into the ring. From there only copies are possible.
  if (direction == gpu::CopyDirection::kDeviceToHost) return paths;
  if (traits.has_pack_kernels) paths.add(CopyPath::kKernel);
  if (staging != nullptr) paths.add(CopyPath::kStaged);
  return paths;
}

std::vector<std::unique_ptr<gpu::Stream>> make_streams(gpu::Device& device, std::size_t count) {
  std::vector<std::unique_ptr<gpu::Stream>> streams;
  while (streams.size() < count) {
    streams.push_back(device.create_stream(gpu::StreamPriority::kHigh));
  }
  return streams;
}

std::size_t num_second_streams(gpu::CopyDirection direction, const StagingRing* staging,
                               const BlockSums* sums) {
  const bool checks = sums != nullptr && direction == gpu::CopyDirection::kHostToDevice;
  return staging != nullptr || checks ? CopyLane::kNumSecondStreams : 0;
}

/// Whether scatters of these stretches, `bytes` in all, are as fast as one copy of all their runs:
/// threads share that copy, and of the scatters only the long ones.
bool are_best_scattered(std::uint64_t bytes, std::span<const PackedStretch> stretches) {
  return bytes < BatchCopy::kSharedBytes || bytes / stretches.size() >= BatchCopy::kSharedBytes;
}

/// Why a load failed: the tag of a block that arrived differs from the tag of its store.
std::string mismatch_text(const BlockSlot& block, std::uint64_t expected, std::uint64_t found) {
  char tags[64];
  std::snprintf(tags, sizeof(tags), "tag %016llx; expected %016llx",
                static_cast<unsigned long long>(found), static_cast<unsigned long long>(expected));
  return "damaged block: slot " + std::to_string(block.slot.value()) + " arrived with " + tags;
}

/// The time between two events that are done, or 0 if the device cannot measure it.
std::chrono::nanoseconds time_between(const gpu::Event& begin, const gpu::Event& end) {
  // `begin` can have failed because an earlier piece without an event failed in this stream.
  if (begin.query() != gpu::EventState::kDone) return std::chrono::nanoseconds::zero();
  try {
    return end.elapsed_since(begin);
  } catch (const Error&) {
    return std::chrono::nanoseconds::zero();
  }
}

}  // namespace

CopyLane::CopyLane(gpu::Device& device, PathChooser& chooser, gpu::CopyDirection direction,
                   StagingRing* staging, const Checks& checks)
    : device_(device),
      chooser_(chooser),
      direction_(direction),
      staging_(staging),
      sums_(checks.sums),
      sampler_(checks.sampler),
      known_(checks.known),
      paths_(paths_of(device.traits(), direction, staging)),
      stream_(device.create_stream(gpu::StreamPriority::kHigh)),
      second_streams_(make_streams(device, num_second_streams(direction, staging, checks.sums))) {}

CopyLane::~CopyLane() {
  KVFERRY_CHECK(!busy(), "a copy lane is destroyed with " + std::to_string(in_flight_.size()) +
                             " pieces in flight and " + std::to_string(waiting_.size()) +
                             " waiting");
}

void CopyLane::submit(Piece piece) {
  if (piece.kind == TransferKind::kStore) known_.forget(piece);
  InFlight work;
  work.piece = std::move(piece);
  work.runs = coalesce_runs(work.piece);
  work.shape = {direction_, work.runs.size(), work.piece.bytes};
  work.is_checked =
      sums_ != nullptr && work.piece.kind == TransferKind::kLoad && sampler_.chooses(work.piece);
  if (work.is_checked && device_.traits().sums_at_copy_speed) {
    work.stretches = slot_stretches(work.piece);
    work.shape.is_best_scattered = are_best_scattered(work.piece.bytes, work.stretches);
  }
  work.path = choose(work);
  waiting_.push_back(std::move(work));
  start_waiting();
}

// Pieces take staging memory one after the other, so that no two pieces hold a half each and wait.
// The first one always gets it in the end: it needs half of the memory at most, and older pieces
// give theirs back. The same is true of the sums.
void CopyLane::start_waiting() {
  while (!waiting_.empty()) {
    InFlight& first = waiting_.front();
    // A lost device refuses the piece, and then the piece ends.
    if (!take_memory(first) && !device_.lost()) return;
    in_flight_.push_back(std::move(first));
    waiting_.pop_front();
    InFlight& work = in_flight_.back();
    work.last_stream = stream_.get();
    if (has_second_stream(work)) {
      work.last_stream = second_streams_[num_seconds_++ % second_streams_.size()].get();
    }
    try {
      enqueue(work);
    } catch (const Error& error) {
      work.failure = std::string("submit: ") + error.what();
    }
  }
}

CopyPath CopyLane::choose(const InFlight& work) const {
  CopyPaths available = paths_;
  if (staging_ != nullptr && work.piece.bytes > staging_->size_bytes() / 2) {
    available.remove(CopyPath::kStaged);
  }
  return chooser_.choose(work.shape, available);
}

bool CopyLane::take_memory(InFlight& work) {
  if (work.is_checked && !work.sums) {
    work.sums = sums_->take(static_cast<std::uint32_t>(work.piece.blocks.size()));
  }
  return take_staging(work) && (!work.is_checked || work.sums);
}

void CopyLane::give_memory_back(const InFlight& work) {
  for (const RingRegion& region : work.staging) staging_->release(region.ticket);
  if (work.sums) sums_->give_back(*work.sums);
}

bool CopyLane::take_staging(InFlight& work) {
  if (work.path != CopyPath::kStaged) return true;
  const auto wanted = static_cast<std::uint32_t>(work.piece.blocks.size());
  while (work.num_staged < wanted) {
    const RingRegion region =
        staging_->allocate(work.piece.of->geometry.packed_bytes, wanted - work.num_staged);
    if (region.num_entries == 0) return false;
    work.staging.push_back(region);
    work.num_staged += region.num_entries;
  }
  return true;
}

void CopyLane::enqueue(InFlight& work) {
  if (KVFERRY_FAULT_POINT("transfer.submit")) throw DeviceError("fault point transfer.submit");
  work.begin = device_.create_event();
  work.end = device_.create_event();
  if (work.path != CopyPath::kStaged) stream_->wait(*work.piece.after);
  // This also keeps a failure of an earlier piece in this stream out of this piece's `end`.
  stream_->record(*work.begin);
  if (has_second_stream(work)) return enqueue_on_second(work);
  if (work.path == CopyPath::kKernel) {
    if (work.stretches.empty()) work.stretches = slot_stretches(work.piece);
    enqueue_scatter(work, *stream_, work.stretches);
  } else {
    enqueue_copy(work, work.runs);
  }
  if (KVFERRY_FAULT_POINT("transfer.record")) throw DeviceError("fault point transfer.record");
  stream_->record(*work.end);
  work.recorded = true;
}

void CopyLane::enqueue_on_second(InFlight& work) {
  const bool is_staged = work.path == CopyPath::kStaged;
  work.copied = device_.create_event();
  work.second_begin = device_.create_event();
  enqueue_copy(work, is_staged ? staging_runs(work.piece, work.staging) : work.runs);
  stream_->record(*work.copied);
  gpu::Stream& second = *work.last_stream;
  second.wait(*work.copied);
  second.wait(*work.piece.after);
  second.record(*work.second_begin);
  if (is_staged) {
    enqueue_scatter(work, second, staging_stretches(work.piece, work.staging));
  } else {
    enqueue_check(work, second);
  }
  if (KVFERRY_FAULT_POINT("transfer.record")) throw DeviceError("fault point transfer.record");
  second.record(*work.end);
  work.recorded = true;
}

void CopyLane::enqueue_check(const InFlight& work, gpu::Stream& stream) {
  std::vector<BlockId> blocks;
  for (const BlockSlot& entry : work.piece.blocks) blocks.push_back(entry.block);
  sums_->clear(stream, *work.sums);
  stream.sum(work.piece.of->geometry, blocks, sums_->device_address(*work.sums));
  sums_->send(stream, *work.sums);
}

// There is more than one call only if a block has more fragments than one call takes.
void CopyLane::enqueue_copy(InFlight& work, std::span<const gpu::CopyRun> runs) {
  // Whole slots into staging memory are few and large runs.
  const gpu::CopyCall call = work.path == CopyPath::kPerRun  ? gpu::CopyCall::kPerRun
                             : work.path == CopyPath::kBatch ? gpu::CopyCall::kBatch
                                                             : gpu::CopyCall::kDeviceDefault;
  while (!runs.empty()) {
    const auto part = runs.first(std::min(gpu::kMaxBatchRuns, runs.size()));
    stream_->copy(direction_, part, call);
    work.submitted = true;
    runs = runs.subspan(part.size());
  }
}

void CopyLane::enqueue_scatter(InFlight& work, gpu::Stream& stream,
                               std::span<const PackedStretch> stretches) {
  std::optional<SumRange> sums = work.sums;
  if (sums) {
    sums_->clear(stream, *sums);
    work.submitted = true;  // The words are not given back while they can still be written.
  }
  for (const PackedStretch& stretch : stretches) {
    const std::uintptr_t its_sums = sums ? sums_->device_address(*sums) : 0;
    stream.scatter(work.piece.of->geometry, stretch.blocks, stretch.address, its_sums);
    work.submitted = true;
    if (sums) sums->first += stretch.blocks.size();
  }
  if (work.sums) sums_->send(stream, *work.sums);
}

// A failed event proves that its point was reached, unless the device is lost with memory in doubt.
// The loss is queried after the event, so that a failure which a loss caused is not taken for
// proof.
bool CopyLane::ended(const InFlight& work) {
  // Nothing touches a load that was not submitted. But a store's gather may still write the ring.
  if (!work.submitted && work.piece.kind == TransferKind::kLoad) return true;
  const gpu::EventState after = work.piece.after->query();
  if (after == gpu::EventState::kPending) {
    if (&work == &in_flight_.front()) held_ = true;
    return false;
  }
  if (!work.submitted) return after == gpu::EventState::kDone || !in_doubt(device_);
  if (work.recorded) {
    const gpu::EventState end = work.end->query();
    if (end == gpu::EventState::kPending) return false;
    return end == gpu::EventState::kDone || !in_doubt(device_);
  }
  // This work has no event, so only an empty stream proves that it ended. reap() ends nothing
  // younger meanwhile, so the bytes in flight reach their bound and the stream does run empty.
  const auto is_empty = [](const auto& stream) {
    return stream->synchronize(std::chrono::nanoseconds(0));
  };
  return is_empty(stream_) &&
         std::all_of(second_streams_.begin(), second_streams_.end(), is_empty) &&
         !in_doubt(device_);
}

// A stream runs in order. While a piece has not ended, no younger piece with the same last stream
// can have ended. If its last stream is the copies' stream, no younger piece at all can have ended,
// because every piece copies there.
std::vector<EndedPiece> CopyLane::reap() {
  std::vector<EndedPiece> pieces;
  std::vector<const gpu::Stream*> busy;
  held_ = false;
  for (auto at = in_flight_.begin(); at != in_flight_.end();) {
    if (std::find(busy.begin(), busy.end(), at->last_stream) != busy.end()) {
      ++at;
      continue;
    }
    if (!ended(*at)) {
      // On a lost device, pieces that were never submitted may overtake the pieces in doubt.
      if (!device_.lost()) {
        const bool is_unmarked = at->submitted && !at->recorded;
        if (is_unmarked || at->last_stream == stream_.get()) break;
        busy.push_back(at->last_stream);
      }
      ++at;
      continue;
    }
    InFlight work = std::move(*at);
    at = in_flight_.erase(at);
    EndedPiece piece{
        .piece = std::move(work.piece), .failure = std::move(work.failure), .damaged = {}};
    if (work.recorded) {
      piece.failure = failure_of(work, piece.piece);
      if (piece.failure.empty()) {
        piece.device_time = time_of(work);
        if (piece.piece.kind == TransferKind::kStore) write_tags(piece.piece);
        if (work.sums) check_tags(*work.sums, piece);
        if (piece.piece.kind == TransferKind::kLoad && sampler_.learns()) {
          sampler_.learn(work.is_checked, piece.piece.bytes, checked_time(work, piece.device_time));
        }
      }
    }
    give_memory_back(work);
    pieces.push_back(std::move(piece));
  }
  start_waiting();
  return pieces;
}

std::string CopyLane::failure_of(const InFlight& work, const Piece& piece) {
  const auto done = [](const gpu::Event& event) { return event.query() == gpu::EventState::kDone; };
  if (!done(*piece.after)) {
    return (piece.kind == TransferKind::kStore ? "gather: " : "fence: ") + piece.after->failure();
  }
  if (work.copied != nullptr && !done(*work.copied)) return "copy: " + work.copied->failure();
  if (done(*work.end)) return {};
  const bool scattered = work.path == CopyPath::kKernel || work.path == CopyPath::kStaged;
  const char* const what = scattered ? "scatter: " : work.copied != nullptr ? "check: " : "copy: ";
  return what + work.end->failure();
}

// The tags are written before the store's end is reported, so that every later load of the slot
// sees them.
void CopyLane::write_tags(const Piece& store) {
  if (!store.of->slots.has_tags()) return;
  std::span<const std::uint64_t> sums;
  if (store.sums.count != 0) sums = sums_->arrived(store.sums);
  for (std::size_t i = 0; i < store.blocks.size(); ++i) {
    const BlockSlot& block = store.blocks[i];
    const std::uint64_t tag = sums.empty() ? gpu::kNoTag : gpu::tag_of(sums[i], block.identity);
    store.of->slots.tag(block.slot).store(tag, std::memory_order_release);
    if (tag != gpu::kNoTag) known_.know(store, block, {.tag = tag, .own_sum = sums[i]});
  }
}

void CopyLane::check_tags(const SumRange& sums, EndedPiece& load) {
  const std::span<const std::uint64_t> arrived = sums_->arrived(sums);
  for (std::size_t i = 0; i < load.piece.blocks.size(); ++i) {
    const BlockSlot& block = load.piece.blocks[i];
    const std::uint64_t expected =
        load.piece.of->slots.tag(block.slot).load(std::memory_order_acquire);
    const std::uint64_t found = gpu::tag_of(arrived[i], block.identity);
    const bool is_whole = expected == found;
    if (is_whole && known_.find(load.piece, block).tag != found) {
      known_.know(load.piece, block, {.tag = found});
    }
    if (expected == gpu::kNoTag || is_whole) continue;
    if (load.failure.empty()) load.failure = mismatch_text(block, expected, found);
    load.damaged.push_back(block.slot);
  }
}

// The stages of staged loads overlap, so the slower stage determines the rate. Scatters run on
// several streams, so each takes a share of the time between two ends.
std::chrono::nanoseconds CopyLane::time_of(const InFlight& work) {
  if (work.path != CopyPath::kStaged) {
    // A check takes the same time whichever path the bytes took.
    const auto time = time_between(*work.begin, work.copied != nullptr ? *work.copied : *work.end);
    chooser_.learn(work.shape, work.path, time);
    return time;
  }
  const auto copy = time_between(*work.begin, *work.copied);
  const auto scatter = time_between(*work.second_begin, *work.end);
  if (copy.count() != 0 && scatter.count() != 0) {
    chooser_.learn(work.shape, work.path,
                   std::max(copy, scatter / std::int64_t{kNumSecondStreams}));
  }
  return copy + scatter;
}

std::chrono::nanoseconds CopyLane::checked_time(const InFlight& work,
                                                std::chrono::nanoseconds time) {
  const bool is_apart = work.is_checked && work.path != CopyPath::kStaged && work.second_begin;
  return is_apart ? time + time_between(*work.second_begin, *work.end) : time;
}

}  // namespace kvferry::transfer
