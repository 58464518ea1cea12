// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/mutex.hpp"
#include "kvferry/base/strong_id.hpp"
#include "kvferry/lmcache/copy_pool.hpp"
#include "kvferry/lmcache/object_store.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvferry::lmcache {

/// One batch that a client has accepted; never 0, never used twice.
using BatchId = StrongId<struct BatchIdTag, std::uint64_t>;

/// What became of a batch.
struct Completion {
  BatchId id;
  /// Of a set: every value is held. Of the others: they were performed, whatever they found.
  bool ok = false;
  std::string error;  ///< One line, if not ok.
  /// By key, but for a set: it was loaded, is there, was there.
  std::optional<std::vector<bool>> found;
  /// What was submitted along with the buffers; goes with the completion, on the thread that
  /// drained it.
  std::shared_ptr<void> keeper;
};

/// Counters since construction; those of bytes are of values that were copied.
struct ClientSnapshot {
  StoreSnapshot store;
  std::uint64_t num_hits_total = 0;    ///< Keys that were got.
  std::uint64_t num_misses_total = 0;  ///< Keys that were asked for in vain.
  std::uint64_t stored_bytes_total = 0;
  std::uint64_t loaded_bytes_total = 0;
  std::uint64_t num_failed_total = 0;  ///< Batches that were not ok.
  std::uint64_t num_open = 0;          ///< Batches without a completion yet.
};

/// An object store as LMCache drives one: batches are submitted and complete later, in any order,
/// or before the submission returns.
///
/// Each batch that was accepted (its submission returned) has exactly one completion, whatever
/// happens: a full store, a missing key, close(). Buffers are the client's from the submission
/// until the completion, and it touches none after that, nor after close() has returned.
///
/// Thread-safe: submissions, drain() and close() on any threads at once.
class ObjectClient {
 public:
  /// `num_workers`: threads that copy; 0: as CopyPool says. Throws ResourceError.
  ObjectClient(std::unique_ptr<ObjectStore> store, std::uint32_t num_workers);
  /// close().
  ~ObjectClient();
  ObjectClient(const ObjectClient&) = delete;
  ObjectClient& operator=(const ObjectClient&) = delete;

  /// An eventfd that is readable while there are completions. Valid until destruction.
  [[nodiscard]] int event_fd() const { return event_fd_; }

  // One buffer for each key. All throw Error after close(), and std::bad_alloc; nothing was
  // accepted then.

  /// All values, or none.
  BatchId submit_set(std::span<const std::string_view> keys,
                     std::span<const std::span<const std::byte>> values,
                     std::shared_ptr<void> keeper = {});
  /// The values that are held with exactly the size of their buffer; others' buffers stay as they
  /// are.
  BatchId submit_get(std::span<const std::string_view> keys,
                     std::span<const std::span<std::byte>> buffers,
                     std::shared_ptr<void> keeper = {});
  BatchId submit_exists(std::span<const std::string_view> keys);
  BatchId submit_delete(std::span<const std::string_view> keys);

  /// Takes what keeps the buffers of the completions that were not drained yet: no copy touches
  /// them any more.
  [[nodiscard]] std::vector<std::shared_ptr<void>> take_keepers();
  /// Takes the completions that there are, and makes the eventfd unreadable. After close() too.
  [[nodiscard]] std::vector<Completion> drain();
  /// Ends what is under way: copies that have not begun are given up, and their batches are not ok
  /// (of a get: not found). Idempotent; returns on every thread only when all is quiet.
  void close();

  [[nodiscard]] ClientSnapshot snapshot() const;
  [[nodiscard]] ObjectStore& store() { return *store_; }
  [[nodiscard]] std::uint32_t num_workers() const { return pool_.num_threads(); }

 private:
  using Node = std::list<Completion>;
  class Accepted;
  template <typename Values>
  class Transfer;
  class SetJob;
  class GetJob;

  [[nodiscard]] Accepted accept();
  /// `node` has one element, which only moves: this cannot fail.
  void complete(Node&& node) noexcept;
  void start(const std::shared_ptr<CopyJob>& job, CopyUrgency urgency) noexcept;
  /// Performs an exists or a delete.
  template <typename Operation>
  BatchId perform(Operation operation);

  const std::unique_ptr<ObjectStore> store_;
  const int event_fd_;
  mutable Mutex mutex_;
  CondVar quiet_;
  bool closing_ KVFERRY_GUARDED_BY(mutex_) = false;
  std::uint64_t next_id_ KVFERRY_GUARDED_BY(mutex_) = 1;
  std::uint64_t num_open_ KVFERRY_GUARDED_BY(mutex_) = 0;
  Node completions_ KVFERRY_GUARDED_BY(mutex_);
  std::uint64_t num_failed_ KVFERRY_GUARDED_BY(mutex_) = 0;
  std::atomic<std::uint64_t> num_hits_ = 0;
  std::atomic<std::uint64_t> num_misses_ = 0;
  std::atomic<std::uint64_t> stored_bytes_ = 0;
  std::atomic<std::uint64_t> loaded_bytes_ = 0;
  /// Last: its threads end before what they use.
  CopyPool pool_;
};

}  // namespace kvferry::lmcache
