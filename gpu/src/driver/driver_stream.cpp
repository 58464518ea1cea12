// SPDX-License-Identifier: Apache-2.0
#include "driver/driver_stream.hpp"

#include "kvferry/base/check.hpp"

#include "copy_runs.hpp"
#include "driver/driver_context.hpp"
#include "driver/driver_event.hpp"
#include "driver/driver_scope.hpp"
#include "driver/poll_until.hpp"

#include <utility>

namespace kvferry::gpu {
namespace {

// cudaStreamLegacy and hipStreamLegacy are 1. 0 is the same stream, because none of our callers
// compiles with per-thread default streams.
bool is_legacy_default(StreamHandle stream) { return stream <= StreamHandle{1}; }

}  // namespace

DriverStream::DriverStream(DriverContext& context, StreamHandle stream, Ownership ownership)
    : context_(context),
      stream_(stream),
      ownership_(ownership),
      batch_refused_(ownership == Ownership::kView && is_legacy_default(stream)) {
  ++context_.num_streams;
}

// A view may outlive the engine's stream, so its handle is only used if there is work after the
// last record.
DriverStream::~DriverStream() {
  const bool ended = synchronize(std::chrono::nanoseconds::max());
  if (ownership_ == Ownership::kOwned) {
    const DriverScope scope(context_);
    // No event was available. A query of the stream itself needs none.
    if (!ended && !context_.lost()) {
      static_cast<void>(poll_until(std::chrono::nanoseconds::max(), [&] {
        const auto state = context_.note(context_.api().query_stream(stream_), "query a stream");
        return state.status != DriverStatus::kNotReady;
      }));
    }
    if (!context_.lost()) static_cast<void>(context_.api().destroy_stream(stream_));
  }
  std::shared_ptr<const DriverRecord> last;
  {
    MutexLock lock(mutex_);
    last.swap(last_record_);
  }
  last.reset();
  --context_.num_streams;
}

// On a lost device the event fails instead, so that code that waits for the work learns of the
// loss.
void DriverStream::record(Event& event) {
  DriverEvent& driver_event = DriverEvent::of(event, context_);
  try {
    driver_event.refer_to(make_record(Failure::kTaken));
  } catch (const DeviceError&) {
    if (!context_.lost()) throw;
    driver_event.refer_to(std::make_shared<DriverRecord>(context_));
  }
}

void DriverStream::wait(const Event& event) {
  const auto record = DriverEvent::of(event, context_).record();
  KVFERRY_CHECK(record != nullptr,
                "a stream was told to wait for an event that was never recorded");
  const DriverScope scope(context_);
  check_open();
  context_.check(context_.api().wait_event(stream_, record->handle()), "wait for an event");
  mark_submitted();
}

void DriverStream::copy(CopyDirection direction, std::span<const CopyRun> runs, CopyCall call) {
  if (runs.empty()) return;
  check_copy_runs(runs);
  context_.device_ranges().check(direction, runs);
  const DriverScope scope(context_);
  check_open();
  if (batches(call, runs.size())) {
    copy_in_batches(direction, runs);
  } else {
    copy_one_by_one(direction, runs, Begun::kNo);
  }
}

void DriverStream::gather(const BlockGeometry& geometry, std::span<const BlockId> blocks,
                          std::uintptr_t packed, std::uintptr_t sums) {
  pack(PackWay::kGather, geometry, blocks, packed, sums);
}

void DriverStream::scatter(const BlockGeometry& geometry, std::span<const BlockId> blocks,
                           std::uintptr_t packed, std::uintptr_t sums) {
  pack(PackWay::kScatter, geometry, blocks, packed, sums);
}

void DriverStream::sum(const BlockGeometry& geometry, std::span<const BlockId> blocks,
                       std::uintptr_t sums) {
  pack(PackWay::kSum, geometry, blocks, 0, sums);
}

void DriverStream::fill(std::uintptr_t address, std::uint8_t value, std::uint64_t bytes) {
  if (bytes == 0) return;
  const DriverScope scope(context_);
  check_open();
  context_.check(context_.api().fill(address, value, bytes, stream_), "fill device memory");
  mark_submitted();
}

bool DriverStream::synchronize(std::chrono::nanoseconds bound) {
  if (context_.lost()) return !context_.loss().in_doubt();
  std::shared_ptr<const DriverRecord> point;
  bool covered = false;
  {
    MutexLock lock(mutex_);
    point = last_record_;
    covered = num_covered_ == num_submitted_;
  }
  try {
    if (!covered) point = make_record(Failure::kLeft);
  } catch (const DeviceError&) {
    return context_.loss().quiet();
  }
  const bool reached = point == nullptr || point->wait(bound) != EventState::kPending;
  return reached && !context_.loss().in_doubt();
}

void DriverStream::fail(std::string why) {
  MutexLock lock(mutex_);
  if (failure_.empty()) failure_ = std::move(why);
}

void DriverStream::pack(PackWay way, const BlockGeometry& geometry, std::span<const BlockId> blocks,
                        std::uintptr_t packed, std::uintptr_t sums) {
  check_sums(way, sums);
  if (blocks.empty()) return;
  check_blocks(geometry, blocks);
  const DriverScope scope(context_);
  check_open();
  std::string failure = context_.pack().launch(way, geometry, blocks, packed, sums, stream_);
  mark_submitted();
  if (!failure.empty()) fail(std::move(failure));
}

void DriverStream::check_open() {
  context_.throw_if_lost();
  if (ownership_ == Ownership::kOwned) return;
  const auto capturing = context_.api().is_capturing(stream_);
  context_.check(capturing.result, "ask whether the engine's stream is being captured");
  if (capturing.value) {
    throw DeviceError(
        "the engine's stream is being captured into a graph: a replay would copy the blocks of "
        "this step again. Submit outside of captures");
  }
}

std::shared_ptr<const DriverRecord> DriverStream::make_record(Failure failure) {
  const DriverScope scope(context_);
  check_open();
  std::uint64_t covers = 0;
  {
    MutexLock lock(mutex_);
    covers = num_submitted_;
  }
  const EventHandle event = context_.event_pool().take();
  const DriverResult result = context_.api().record_event(event, stream_);
  if (!result.ok()) context_.event_pool().give_back(event, EventState::kFailed);
  context_.check(result, "record an event");
  std::shared_ptr<const DriverRecord> before;
  MutexLock lock(mutex_);
  std::string why = failure == Failure::kTaken ? std::exchange(failure_, {}) : std::string();
  auto record = std::make_shared<DriverRecord>(context_, event, std::move(why));
  if (covers >= num_covered_) {
    num_covered_ = covers;
    before = std::exchange(last_record_, record);
  }
  return record;
}

void DriverStream::mark_submitted() {
  MutexLock lock(mutex_);
  ++num_submitted_;
}

}  // namespace kvferry::gpu
