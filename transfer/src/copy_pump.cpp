// SPDX-License-Identifier: Apache-2.0
#include "copy_pump.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/base/test_hooks.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <string>
#include <system_error>
#include <utility>

namespace kvferry::transfer {
namespace {

std::thread start_thread(std::function<void()> body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    throw ResourceError(std::string("cannot start the transfer thread: ") + error.what());
  }
}

}  // namespace

CopyPump::CopyPump(gpu::Device& device, const cpu_tier::Arena& arena, StagingRing& ring,
                   TransferTable& table)
    : ring_(ring),
      table_(table),
      loads_(device, arena, gpu::CopyDirection::kHostToDevice),
      stores_(device, arena, gpu::CopyDirection::kDeviceToHost),
      thread_(start_thread([this] { run(); })) {}

CopyPump::~CopyPump() {
  table_.stop();
  thread_.join();
}

void CopyPump::run() {
  for (;;) {
    reap(loads_);
    reap(stores_);
    drain();
    const bool polling = loads_.busy() || stores_.busy() || !draining_.empty();
    TransferTable::Work work = table_.next(polling);
    if (work.stop) return;
    std::move(work.drain.begin(), work.drain.end(), std::back_inserter(draining_));
    if (!work.submit) continue;
    KVFERRY_PAUSE_POINT("transfer.before_submit");
    CopyLane& lane = work.submit->kind == TransferKind::kLoad ? loads_ : stores_;
    lane.submit(std::move(*work.submit));
  }
}

void CopyPump::reap(CopyLane& lane) {
  for (const EndedPiece& ended : lane.reap()) {
    // Before the end is told, so that who sees a completion sees its ring entries free.
    if (ended.piece.kind == TransferKind::kStore) ring_.release(ended.piece.region.ticket);
    KVFERRY_PAUSE_POINT("transfer.before_complete");
    table_.finish(ended);
  }
}

void CopyPump::drain() {
  // A dropped load was never submitted, so nothing touches it. A dropped store is still being
  // gathered, maybe.
  const auto ended =
      std::stable_partition(draining_.begin(), draining_.end(), [](const Piece& piece) {
        return piece.kind == TransferKind::kStore &&
               piece.after->query() == gpu::EventState::kPending;
      });
  for (auto piece = ended; piece != draining_.end(); ++piece) {
    if (piece->kind == TransferKind::kStore) ring_.release(piece->region.ticket);
    table_.finish_drained(*piece);
  }
  draining_.erase(ended, draining_.end());
}

}  // namespace kvferry::transfer
