// SPDX-License-Identifier: Apache-2.0
#include "transfer_table.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/base/deadline.hpp"

#include <algorithm>
#include <utility>

namespace kvferry::transfer {
namespace {

std::string lost_text(const gpu::DeviceLoss& loss) {
  return "the device was lost at " + gpu::utc_text(loss.since) + ": " + loss.why;
}

}  // namespace

TransferTable::~TransferTable() {
  MutexLock lock(mutex_);
  KVFERRY_CHECK(transfers_.empty() && dropped_.empty(), "a transfer engine is destroyed with " +
                                                            std::to_string(transfers_.size()) +
                                                            " transfers under way");
}

TransferTable::Transfer& TransferTable::add(TransferId transfer, TransferKind kind) {
  KVFERRY_CHECK(transfer != TransferId{}, "transfer id 0");
  const auto [at, added] = transfers_.try_emplace(transfer);
  KVFERRY_CHECK(added, "transfer " + std::to_string(transfer.value()) + " is under way already");
  at->second.kind = kind;
  at->second.started = Clock::now();
  return at->second;
}

TransferTable::Transfer& TransferTable::find(TransferId transfer) {
  const auto at = transfers_.find(transfer);
  KVFERRY_CHECK(at != transfers_.end(),
                "transfer " + std::to_string(transfer.value()) + " is not under way");
  return at->second;
}

bool TransferTable::begin_gather(TransferId transfer) {
  MutexLock lock(mutex_);
  if (closed_ || loss_) return false;
  const auto at = transfers_.find(transfer);
  Transfer& store = at == transfers_.end() ? add(transfer, TransferKind::kStore) : at->second;
  KVFERRY_CHECK(
      store.kind == TransferKind::kStore && !store.sealed,
      "gather() for transfer " + std::to_string(transfer.value()) + ", which is a load or sealed");
  if (!store.takes_blocks()) return false;
  store.gathering = true;
  return true;
}

bool TransferTable::takes_blocks(TransferId transfer) const {
  MutexLock lock(mutex_);
  if (closed_ || loss_) return false;
  const auto at = transfers_.find(transfer);
  return at == transfers_.end() || at->second.takes_blocks();
}

void TransferTable::end_gather(TransferId transfer, GatherResult result) {
  MutexLock lock(mutex_);
  Transfer& store = find(transfer);
  store.gathering = false;
  store.num_blocks += result.num_gathered;
  if (store.num_blocks == 0) {
    sealed_by_close_.erase(transfer);
    erase(transfer);
    return;
  }
  for (Piece& piece : result.pieces) {
    ++store.num_pieces;
    // Either can have happened while the gather was launched: by close(), or by a copy of an
    // earlier gather.
    if (store.cancelled || store.failed) {
      drop(store, std::move(piece));
    } else {
      queue_.push(std::move(piece));
    }
  }
  if (!result.failure.empty()) fail(transfer, store, result.failure);
  end_if_over(transfer);
  work_.notify_one();
}

bool TransferTable::seal(TransferId transfer) {
  MutexLock lock(mutex_);
  if (sealed_by_close_.erase(transfer) != 0) return true;
  const auto at = transfers_.find(transfer);
  if (at == transfers_.end()) return false;
  KVFERRY_CHECK(
      at->second.kind == TransferKind::kStore && !at->second.sealed,
      "seal() of transfer " + std::to_string(transfer.value()) + ", which is a load or sealed");
  at->second.sealed = true;
  end_if_over(transfer);
  return true;
}

void TransferTable::add_load(TransferId transfer, std::vector<Piece> pieces,
                             const std::string& failure) {
  MutexLock lock(mutex_);
  Transfer& load = add(transfer, TransferKind::kLoad);
  load.sealed = true;
  if (closed_) {
    load.incomplete = true;
  } else if (loss_) {
    fail(transfer, load, lost_text(*loss_));
  } else if (!failure.empty()) {
    fail(transfer, load, failure);
  } else {
    for (Piece& piece : pieces) {
      ++load.num_pieces;
      load.num_blocks += piece.blocks.size();
      queue_.push(std::move(piece));
    }
  }
  end_if_over(transfer);
  work_.notify_one();
}

void TransferTable::drop(Transfer& transfer, Piece piece) {
  transfer.incomplete = true;
  dropped_.push_back(std::move(piece));
}

void TransferTable::drop_queued(TransferId id, Transfer& transfer) {
  for (Piece& piece : queue_.remove(transfer.kind, id)) drop(transfer, std::move(piece));
  work_.notify_one();
}

void TransferTable::fail(TransferId id, Transfer& transfer, const std::string& failure) {
  if (!transfer.failed) transfer.failure = failure;
  transfer.failed = true;
  drop_queued(id, transfer);
}

void TransferTable::cancel_locked(TransferId id, Transfer& transfer) {
  transfer.cancelled = true;
  drop_queued(id, transfer);
}

void TransferTable::cancel(TransferId transfer) {
  MutexLock lock(mutex_);
  const auto at = transfers_.find(transfer);
  if (at == transfers_.end()) return;
  cancel_locked(transfer, at->second);
  end_if_over(transfer);
}

void TransferTable::cancel_unbegun(TransferId transfer) {
  MutexLock lock(mutex_);
  const auto at = transfers_.find(transfer);
  if (at == transfers_.end() || at->second.kind != TransferKind::kLoad) return;
  if (at->second.first_submitted) return;
  cancel_locked(transfer, at->second);
  end_if_over(transfer);
}

void TransferTable::end_if_over(TransferId id) {
  Transfer& transfer = find(id);
  if (!transfer.sealed || transfer.gathering || transfer.num_pieces != 0) return;
  Completion end{.transfer = id,
                 .kind = transfer.kind,
                 .outcome = Outcome::kDone,
                 .reason = std::move(transfer.failure),
                 .damaged = std::move(transfer.damaged),
                 .bytes = transfer.bytes,
                 .device_time = transfer.device_time};
  if (transfer.first_submitted) end.queue_time = *transfer.first_submitted - transfer.started;
  std::sort(end.damaged.begin(), end.damaged.end());
  end.damaged.erase(std::unique(end.damaged.begin(), end.damaged.end()), end.damaged.end());
  if (transfer.failed_undamaged) end.damaged.clear();
  if (transfer.failed) {
    end.outcome = Outcome::kFailed;
    ++counters_.failed_transfers;
  } else if (transfer.incomplete) {
    end.outcome = Outcome::kCancelled;
    ++counters_.cancelled_transfers;
  } else {
    (transfer.kind == TransferKind::kStore ? counters_.stored_blocks : counters_.loaded_blocks) +=
        transfer.num_blocks;
  }
  ends_.push_back(std::move(end));
  erase(id);
}

void TransferTable::erase(TransferId id) {
  transfers_.erase(id);
  if (transfers_.empty()) idle_.notify_all();
}

std::vector<Completion> TransferTable::poll() {
  MutexLock lock(mutex_);
  return std::exchange(ends_, {});
}

TransferStats TransferTable::stats() const {
  MutexLock lock(mutex_);
  TransferStats stats = counters_;
  stats.queued_bytes = queue_.queued_bytes();
  stats.in_flight_bytes = queue_.in_flight_bytes();
  stats.quarantined_blocks = in_doubt() ? doubt_.num_blocks : 0;
  return stats;
}

std::optional<OverdueTransfer> TransferTable::overdue(std::chrono::nanoseconds bound) {
  MutexLock lock(mutex_);
  watch_.look(Clock::now());
  const auto age = watch_.in_driver();
  if (!age || *age <= bound) return watch_.stalled(bound);
  const auto oldest = std::min_element(
      transfers_.begin(), transfers_.end(),
      [](const auto& a, const auto& b) { return a.second.started < b.second.started; });
  if (oldest == transfers_.end()) return std::nullopt;
  return OverdueTransfer{
      .transfer = oldest->first, .kind = oldest->second.kind, .stall = Stall::kDriver, .age = *age};
}

bool TransferTable::wait_idle(std::chrono::nanoseconds bound) const {
  MutexLock lock(mutex_);
  return wait_idle_locked(bound);
}

bool TransferTable::wait_idle_locked(std::chrono::nanoseconds bound) const {
  const Deadline deadline(bound);
  while (!transfers_.empty()) {
    if (deadline.passed() || stuck()) return false;
    idle_.wait_for(mutex_, deadline.remaining());
  }
  return true;
}

bool TransferTable::close(std::chrono::nanoseconds bound) {
  MutexLock lock(mutex_);
  if (!std::exchange(closed_, true)) {
    closed_at_ = Clock::now();
    std::vector<TransferId> ids;
    for (const auto& [id, transfer] : transfers_) ids.push_back(id);
    for (const TransferId id : ids) {
      Transfer& transfer = find(id);
      if (!std::exchange(transfer.sealed, true)) sealed_by_close_.insert(id);
      cancel_locked(id, transfer);
      end_if_over(id);
    }
  }
  return wait_idle_locked(bound);
}

std::chrono::nanoseconds TransferTable::closed_for() const {
  MutexLock lock(mutex_);
  return closed_ ? Clock::now() - closed_at_ : Clock::duration::zero();
}

void TransferTable::lose(const gpu::DeviceLoss& loss) {
  MutexLock lock(mutex_);
  const auto before = std::exchange(loss_, loss);
  if (before) {
    if (before->memory != loss.memory) work_.notify_one();
    return;
  }
  std::vector<TransferId> ids;
  for (const auto& [id, transfer] : transfers_) ids.push_back(id);
  for (const TransferId id : ids) {
    fail(id, find(id), lost_text(loss));
    end_if_over(id);
  }
  work_.notify_one();
}

bool TransferTable::in_doubt() const { return loss_ && loss_->memory == gpu::LostMemory::kInDoubt; }

bool TransferTable::stuck() const {
  if (!in_doubt()) return false;
  std::uint64_t num_pieces = 0;
  for (const auto& [id, transfer] : transfers_) {
    if (transfer.gathering) return false;
    num_pieces += transfer.num_pieces;
  }
  return num_pieces != 0 && num_pieces == doubt_.num_pieces;
}

std::optional<Quarantine> TransferTable::quarantine() const {
  MutexLock lock(mutex_);
  if (!in_doubt()) return std::nullopt;
  return Quarantine{.loss = *loss_,
                    .num_transfers = transfers_.size(),
                    .num_blocks = doubt_.num_blocks,
                    .staging_bytes = 0};
}

void TransferTable::hold_in_doubt(const Doubt& doubt) {
  MutexLock lock(mutex_);
  doubt_ = doubt;
  idle_.notify_all();
}

void TransferTable::stop() {
  MutexLock lock(mutex_);
  stopped_ = true;
  work_.notify_one();
}

TransferTable::Work TransferTable::next(std::chrono::nanoseconds bound, HeldLanes held) {
  MutexLock lock(mutex_);
  watch_.leave_driver();
  for (bool waited = false;; waited = true) {
    Work work;
    work.drain = std::exchange(dropped_, {});
    const Clock::time_point now = Clock::now();
    watch_.look(now);
    if (held.loads) watch_.hold(TransferKind::kLoad);
    if (held.stores) watch_.hold(TransferKind::kStore);
    work.submit = queue_.take(now);
    if (work.submit) {
      Transfer& transfer = find(work.submit->transfer);
      if (!transfer.first_submitted) transfer.first_submitted = now;
      work.submit->number = watch_.begin(work.submit->kind, work.submit->transfer);
    }
    work.stop = stopped_;
    if (work.stop || work.submit || !work.drain.empty() || waited) {
      watch_.enter_driver();
      return work;
    }
    work_.wait_for(mutex_, std::min(bound, queue_.paced_for(now).value_or(bound)));
  }
}

void TransferTable::finish(const EndedPiece& ended) {
  const Piece& piece = ended.piece;
  MutexLock lock(mutex_);
  queue_.finish(piece);
  watch_.end(piece.kind, piece.number);
  Transfer& transfer = find(piece.transfer);
  --transfer.num_pieces;
  if (ended.failure.empty()) {
    transfer.bytes += piece.bytes;
    transfer.device_time += ended.device_time;
    (piece.kind == TransferKind::kStore ? counters_.stored_bytes : counters_.loaded_bytes) +=
        piece.bytes;
  } else {
    for (const SlotId slot : ended.damaged) transfer.damaged.push_back({piece.slab_class, slot});
    transfer.failed_undamaged |= ended.damaged.empty();
    fail(piece.transfer, transfer, ended.failure);
  }
  end_if_over(piece.transfer);
}

void TransferTable::finish_drained(const Piece& piece) {
  MutexLock lock(mutex_);
  --find(piece.transfer).num_pieces;
  end_if_over(piece.transfer);
}

}  // namespace kvferry::transfer
