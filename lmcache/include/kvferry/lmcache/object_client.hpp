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

/// One batch that a client has accepted. Never 0, and never used twice.
using BatchId = StrongId<struct BatchIdTag, std::uint64_t>;

/// Whose tags are made and checked. A value that was stored without a tag is loaded unchecked.
enum class Verification : std::uint8_t { kOff, kAll };

/// The result of a batch.
struct Completion {
  BatchId id;
  /// For a set: the store holds every value. For the others: the operation was performed, whatever
  /// it found.
  bool ok = false;
  std::string error;  ///< One line, if not ok.
  /// For each key, except for a set: it was loaded (get), is there (exists), was there (delete).
  std::optional<std::vector<bool>> found;
  /// The object that was submitted together with the buffers. It is destroyed with the completion,
  /// on the thread that drained it.
  std::shared_ptr<void> keeper;
};

/// Counters since construction. Byte counts include only values that were copied.
struct ClientSnapshot {
  StoreSnapshot store;
  std::uint64_t num_hits_total = 0;    ///< Keys that a get has loaded.
  std::uint64_t num_misses_total = 0;  ///< Keys that a get has not loaded.
  std::uint64_t stored_bytes_total = 0;
  std::uint64_t loaded_bytes_total = 0;
  std::uint64_t num_failed_total = 0;  ///< Batches that were not ok.
  std::uint64_t num_open = 0;          ///< Batches without a completion yet.
};

/// The interface by which LMCache uses an object store: batches are submitted and complete later,
/// in any order, possibly before the submission returns.
///
/// Each accepted batch (its submission returned) has exactly one completion, whatever happens: a
/// full store, a missing key, close(). The client uses the buffers from the submission until the
/// completion. It touches none of them afterwards, nor after close() has returned.
///
/// Thread-safe: any threads can call submissions, drain() and close() at the same time.
class ObjectClient {
 public:
  /// `num_workers`: number of threads that copy; 0: the default of CopyPool. Throws ResourceError.
  ObjectClient(std::unique_ptr<ObjectStore> store, std::uint32_t num_workers, Verification verify);
  /// close().
  ~ObjectClient();
  ObjectClient(const ObjectClient&) = delete;
  ObjectClient& operator=(const ObjectClient&) = delete;

  /// An eventfd that is readable while there are completions. Valid until the client is destroyed.
  [[nodiscard]] int event_fd() const { return event_fd_; }

  // One buffer for each key. All of these functions throw Error after close(), and std::bad_alloc;
  // then nothing was accepted.

  /// Stores all values or none.
  BatchId submit_set(std::span<const std::string_view> keys,
                     std::span<const std::span<const std::byte>> values,
                     std::shared_ptr<void> keeper = {});
  /// Loads the values that are held with exactly the size of their buffer. The buffer of a key that
  /// is not held stays unchanged. A value whose tag is wrong is not loaded either, but its buffer
  /// has been written.
  BatchId submit_get(std::span<const std::string_view> keys,
                     std::span<const std::span<std::byte>> buffers,
                     std::shared_ptr<void> keeper = {});
  BatchId submit_exists(std::span<const std::string_view> keys);
  BatchId submit_delete(std::span<const std::string_view> keys);

  /// Returns the objects that keep the buffers of completions that were not drained yet. No copy
  /// touches these buffers any more.
  [[nodiscard]] std::vector<std::shared_ptr<void>> take_keepers();
  /// Takes all completions, and makes the eventfd unreadable. Works after close() too.
  [[nodiscard]] std::vector<Completion> drain();
  /// Ends the work under way: copies that have not begun are given up, and their batches are not ok
  /// (for a get: not found). Idempotent. On every thread it returns only when no copy runs any
  /// more.
  void close();

  [[nodiscard]] ClientSnapshot snapshot() const;
  [[nodiscard]] ObjectStore& store() { return *store_; }
  [[nodiscard]] std::uint32_t num_workers() const { return pool_.num_threads(); }

 private:
  using Node = std::list<Completion>;
  class Accepted;
  struct Copies;
  template <typename Values>
  class Transfer;
  class SetJob;
  class GetJob;

  [[nodiscard]] Accepted accept();
  /// `node` has one element, which is only moved, so this cannot fail.
  void complete(Node&& node) noexcept;
  void start(const std::shared_ptr<CopyJob>& job, CopyUrgency urgency) noexcept;
  /// Performs an exists or a delete.
  template <typename Operation>
  BatchId perform(Operation operation);

  const std::unique_ptr<ObjectStore> store_;
  const CopySums sums_;
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
  /// Last member: its threads end before the members that they use.
  CopyPool pool_;
};

}  // namespace kvferry::lmcache
