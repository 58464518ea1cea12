// SPDX-License-Identifier: Apache-2.0
#include "copy_lane.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/base/test_hooks.hpp"

#include "coalesce_runs.hpp"

#include <algorithm>
#include <span>
#include <utility>

namespace kvferry::transfer {
namespace {

/// Why the bytes of an ended and recorded copy cannot be trusted; empty if they can.
std::string failure_of(const gpu::Event& end, const Piece& piece) {
  if (piece.after->query() != gpu::EventState::kDone) {
    return (piece.kind == TransferKind::kStore ? "gather: " : "fence: ") + piece.after->failure();
  }
  if (end.query() != gpu::EventState::kDone) return "copy: " + end.failure();
  return {};
}

}  // namespace

CopyLane::CopyLane(gpu::Device& device, const cpu_tier::Arena& arena, gpu::CopyDirection direction)
    : device_(device), arena_(arena), direction_(direction), stream_(device.create_stream()) {}

CopyLane::~CopyLane() {
  KVFERRY_CHECK(in_flight_.empty(),
                "a copy lane died with " + std::to_string(in_flight_.size()) + " pieces in flight");
}

void CopyLane::submit(Piece piece) {
  in_flight_.push_back({});
  InFlight& work = in_flight_.back();
  work.piece = std::move(piece);
  try {
    enqueue(work);
  } catch (const Error& error) {
    work.failure = std::string("submit: ") + error.what();
  }
}

void CopyLane::enqueue(InFlight& work) {
  const std::vector<gpu::CopyRun> runs = coalesce_runs(work.piece, arena_);
  if (KVFERRY_FAULT_POINT("transfer.submit")) throw DeviceError("fault point transfer.submit");
  work.begin = device_.create_event();
  work.end = device_.create_event();
  stream_->wait(*work.piece.after);
  // Also keeps what an earlier piece left behind in the stream out of this piece's `end`.
  stream_->record(*work.begin);
  // More than one call only for a block of more fragments than one call takes.
  for (std::size_t first = 0; first < runs.size(); first += gpu::kMaxBatchRuns) {
    const std::size_t count = std::min(gpu::kMaxBatchRuns, runs.size() - first);
    stream_->copy(direction_, std::span(runs).subspan(first, count));
    work.submitted = true;
  }
  if (KVFERRY_FAULT_POINT("transfer.record")) throw DeviceError("fault point transfer.record");
  stream_->record(*work.end);
  work.recorded = true;
}

bool CopyLane::ended(const InFlight& work) {
  // Also if nothing was submitted: the ring entries belong to the gather until it ended.
  if (work.piece.after->query() == gpu::EventState::kPending) return false;
  if (work.recorded) return work.end->query() != gpu::EventState::kPending;
  // A copy without an event: only the stream can tell. The window of bytes in flight fills up
  // behind it, so that the stream does run empty.
  return !work.submitted || stream_->synchronize(std::chrono::nanoseconds::zero());
}

std::vector<EndedPiece> CopyLane::reap() {
  std::vector<EndedPiece> pieces;
  while (!in_flight_.empty() && ended(in_flight_.front())) {
    InFlight work = std::move(in_flight_.front());
    in_flight_.pop_front();
    EndedPiece piece{.piece = std::move(work.piece), .failure = std::move(work.failure)};
    if (work.recorded) {
      piece.failure = failure_of(*work.end, piece.piece);
      // `begin` fails when a piece before it did and had no event of its own to show it.
      if (piece.failure.empty() && work.begin->query() == gpu::EventState::kDone) {
        piece.device_time = work.end->elapsed_since(*work.begin);
      }
    }
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

}  // namespace kvferry::transfer
