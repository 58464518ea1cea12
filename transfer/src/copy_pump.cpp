// SPDX-License-Identifier: Apache-2.0
#include "copy_pump.hpp"

#include "kvferry/base/deadline.hpp"
#include "kvferry/base/error.hpp"
#include "kvferry/base/test_hooks.hpp"

#include "in_doubt.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <string>
#include <system_error>
#include <utility>

namespace kvferry::transfer {
namespace {

/// The time between two looks at the pieces in flight. It is short compared with the 160 us that a
/// piece of 8 MiB takes on PCIe 5 x16.
constexpr std::chrono::nanoseconds kPollInterval = std::chrono::microseconds(50);
/// The time between two looks at a lost device: its driver may still shut down, which makes its
/// memory quiet.
constexpr std::chrono::nanoseconds kDoubtInterval = std::chrono::milliseconds(100);
/// The bound of a wait for work; nothing depends on it.
constexpr std::chrono::nanoseconds kIdleInterval = std::chrono::hours(1);

std::thread start_thread(std::function<void()> body) {
  try {
    if (KVFERRY_FAULT_POINT("transfer.thread")) {
      throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
    }
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    throw ResourceError(std::string("cannot start the transfer thread: ") + error.what());
  }
}

}  // namespace

CopyPump::CopyPump(gpu::Device& device, StagingRing& ring, StagingRing* load_staging,
                   BlockSums* sums, const std::vector<BlockClass>& classes,
                   const TransferOptions& options, PathChooser& chooser, TransferTable& table)
    : device_(device),
      ring_(ring),
      table_(table),
      known_(sums != nullptr &&
             (options.verify == Verification::kSampled || options.scrub_bandwidth != 0)),
      sampler_(options.verify, known_),
      scrubber_(known_, classes, sums != nullptr ? options.scrub_bandwidth : 0),
      loads_(device, chooser, gpu::CopyDirection::kHostToDevice, load_staging,
             {sums, sampler_, known_}),
      stores_(device, chooser, gpu::CopyDirection::kDeviceToHost, nullptr,
              {sums, sampler_, known_}),
      thread_(start_thread([this] {
        run();
        ended_ = true;
      })) {}

CopyPump::~CopyPump() { stop(); }

void CopyPump::stop() {
  table_.stop();
  if (thread_.joinable()) thread_.join();
}

void CopyPump::stop_within(std::chrono::nanoseconds bound) {
  table_.stop();
  for (const Deadline deadline(bound); !ended_;) {
    if (deadline.passed()) return;
    std::this_thread::sleep_for(kPollInterval);
  }
  thread_.join();
}

void CopyPump::run() {
  for (;;) {
    reap(loads_);
    reap(stores_);
    drain();
    note_loss();
    TransferTable::Work work =
        table_.next(patience(), {.loads = loads_.is_held(), .stores = stores_.is_held()});
    if (work.stop) return;
    std::move(work.drain.begin(), work.drain.end(), std::back_inserter(draining_));
    if (!work.submit) {
      if (is_idle()) scrubber_.scrub_one();
      continue;
    }
    KVFERRY_PAUSE_POINT("transfer.before_submit");
    CopyLane& lane = work.submit->kind == TransferKind::kLoad ? loads_ : stores_;
    lane.submit(std::move(*work.submit));
  }
}

bool CopyPump::is_idle() const {
  return !loads_.busy() && !stores_.busy() && draining_.empty() && !in_doubt(device_);
}

std::chrono::nanoseconds CopyPump::patience() const {
  if (is_idle()) return scrubber_.wait(kIdleInterval);
  return in_doubt(device_) ? kDoubtInterval : kPollInterval;
}

void CopyPump::note_loss() {
  const auto loss = device_.lost();
  if (!loss) return;
  table_.lose(*loss);
  TransferTable::Doubt doubt;
  const auto count = [&](const Piece& piece) {
    ++doubt.num_pieces;
    doubt.num_blocks += piece.blocks.size();
  };
  loads_.for_each(count);
  stores_.for_each(count);
  std::for_each(draining_.begin(), draining_.end(), count);
  table_.hold_in_doubt(doubt);
}

void CopyPump::reap(CopyLane& lane) {
  for (const EndedPiece& ended : lane.reap()) {
    // The region is released before the end is reported: a caller that sees a completion finds its
    // ring entries free.
    if (ended.piece.kind == TransferKind::kStore) ring_.release(ended.piece.region.ticket);
    KVFERRY_PAUSE_POINT("transfer.before_complete");
    table_.finish(ended);
  }
}

void CopyPump::drain() {
  // A dropped load was never submitted, so nothing touches it. A dropped store may still be
  // gathered.
  const auto ended =
      std::stable_partition(draining_.begin(), draining_.end(), [this](const Piece& piece) {
        if (piece.kind == TransferKind::kLoad) return false;
        const gpu::EventState gather = piece.after->query();
        if (gather == gpu::EventState::kPending) return true;
        // The loss is queried after the event; CopyLane::ended() says why.
        return gather == gpu::EventState::kFailed && in_doubt(device_);
      });
  for (auto piece = ended; piece != draining_.end(); ++piece) {
    if (piece->kind == TransferKind::kStore) ring_.release(piece->region.ticket);
    table_.finish_drained(*piece);
  }
  draining_.erase(ended, draining_.end());
}

}  // namespace kvferry::transfer
