// SPDX-License-Identifier: Apache-2.0
#include "host/host_stream.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/base/test_hooks.hpp"

#include "copy_runs.hpp"

#include <string>
#include <utility>

namespace kvferry::gpu {
namespace {

void open_for_submission(const HostContext& context) {
  context.loss->throw_if_lost();
  KVFERRY_PAUSE_POINT("gpu.host.submit");
  if (KVFERRY_FAULT_POINT("gpu.host.submit")) {
    throw DeviceError("submission failed by request of the test");
  }
}

}  // namespace

HostStream::HostStream(HostContext& context) : context_(context) { ++context_.num_streams; }

HostStream::~HostStream() { --context_.num_streams; }

void HostStream::record(Event& event) {
  HostEvent& host_event = HostEvent::of(event, context_);
  const auto record = std::make_shared<HostRecord>(context_.loss);
  // The record of a lost device is failed from the start: so whoever waits for it learns of the
  // loss.
  if (!context_.loss->lost()) {
    open_for_submission(context_);
    submit(RecordOperation{record});
  }
  host_event.refer_to(record);
}

void HostStream::wait(const Event& event) {
  auto record = HostEvent::of(event, context_).record();
  KVFERRY_CHECK(record != nullptr, "a stream was told to wait for an event never recorded");
  open_for_submission(context_);
  submit(WaitOperation{std::move(record)});
}

// One call per run passes the link as so many copies, each with its own latency and failure.
void HostStream::copy(CopyDirection direction, std::span<const CopyRun> runs, CopyCall call) {
  if (runs.empty()) return;
  check_copy_runs(runs);
  context_.registrations.check(direction, runs);
  open_for_submission(context_);
  const std::size_t per_call = call == CopyCall::kPerRun ? 1 : runs.size();
  for (; !runs.empty(); runs = runs.subspan(per_call)) {
    const auto part = runs.first(per_call);
    submit(CopyOperation{
        direction, {part.begin(), part.end()}, total_bytes(part), ++context_.num_copies});
  }
}

void HostStream::gather(const BlockGeometry& geometry, std::span<const BlockId> blocks,
                        std::uintptr_t packed, std::uintptr_t sums) {
  pack(PackWay::kGather, geometry, blocks, packed, sums);
}

void HostStream::scatter(const BlockGeometry& geometry, std::span<const BlockId> blocks,
                         std::uintptr_t packed, std::uintptr_t sums) {
  pack(PackWay::kScatter, geometry, blocks, packed, sums);
}

void HostStream::sum(const BlockGeometry& geometry, std::span<const BlockId> blocks,
                     std::uintptr_t sums) {
  pack(PackWay::kSum, geometry, blocks, 0, sums);
}

void HostStream::fill(std::uintptr_t address, std::uint8_t value, std::uint64_t bytes) {
  if (bytes == 0) return;
  open_for_submission(context_);
  submit(FillOperation{address, value, bytes});
}

void HostStream::call(std::function<void()> work) {
  open_for_submission(context_);
  submit(CallOperation{std::move(work)});
}

void HostStream::pack(PackWay way, const BlockGeometry& geometry, std::span<const BlockId> blocks,
                      std::uintptr_t packed, std::uintptr_t sums) {
  check_sums(way, sums);
  if (blocks.empty()) return;
  check_blocks(geometry, blocks);
  open_for_submission(context_);
  submit(PackOperation{way, geometry, {blocks.begin(), blocks.end()}, packed, sums});
}

bool HostInlineStream::synchronize(std::chrono::nanoseconds /*bound*/) { return !in_doubt(); }

void HostInlineStream::submit(HostOperation operation) { runner_.run(operation); }

}  // namespace kvferry::gpu
