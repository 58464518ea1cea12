// SPDX-License-Identifier: Apache-2.0
#include "kvferry/lmcache/object_client.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/base/error.hpp"
#include "kvferry/base/test_hooks.hpp"

#include <algorithm>
#include <cerrno>
#include <sys/eventfd.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace kvferry::lmcache {
namespace {

/// Copies of up to this many bytes are made before the submission returns. Handing one over would
/// take about as long (40 us to wake a thread; the copy takes 100 us at 10 GB/s), and the caller
/// waits for it anyway. LMCache's other submissions wait meanwhile.
constexpr std::uint64_t kInlineBytes = std::uint64_t{1} << 20U;

/// The buffer of a load was used a moment ago, and is read again soon after. Streaming stores into
/// lines that are in a cache are slower than plain ones, unless the buffer is larger than the
/// cache.
constexpr std::uint64_t kStreamingLoadBytes = std::uint64_t{4} << 20U;

int make_event_fd() {
  const int descriptor = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (descriptor < 0) {
    throw ResourceError("cannot make an eventfd: " + std::generic_category().message(errno) +
                        "; raise the limit on open files (ulimit -n)");
  }
  return descriptor;
}

std::vector<std::uint64_t> sizes_of(const auto& buffers) {
  std::vector<std::uint64_t> sizes;
  sizes.reserve(buffers.size());
  for (const auto& buffer : buffers) sizes.push_back(buffer.size());
  return sizes;
}

}  // namespace

/// The duty to complete a batch after it was accepted. If an object of this class is dropped, it
/// completes its batch as failed, so no code path can forget a batch.
class ObjectClient::Accepted {
 public:
  Accepted(ObjectClient& client, Node node) : client_(&client), node_(std::move(node)) {}
  Accepted(Accepted&& other) noexcept
      : client_(std::exchange(other.client_, nullptr)), node_(std::move(other.node_)) {}
  Accepted& operator=(Accepted&&) = delete;
  Accepted(const Accepted&) = delete;
  Accepted& operator=(const Accepted&) = delete;
  ~Accepted() {
    if (client_ != nullptr) client_->complete(std::move(node_));
  }

  [[nodiscard]] BatchId id() const { return node_.front().id; }
  Completion& completion() { return node_.front(); }
  void end() noexcept { std::exchange(client_, nullptr)->complete(std::move(node_)); }
  /// Undoes the acceptance, because the submission throws.
  void withdraw() noexcept {
    ObjectClient* const client = std::exchange(client_, nullptr);
    MutexLock lock(client->mutex_);
    if (--client->num_open_ == 0) client->quiet_.notify_all();
  }

 private:
  ObjectClient* client_;
  Node node_;
};

/// The copies of a batch, and which key each of them is of.
struct ObjectClient::Copies {
  explicit Copies(std::size_t of_keys) : num_keys(of_keys) {
    runs.reserve(num_keys);
    keys.reserve(num_keys);
  }
  void add(std::size_t key, std::byte* destination, const std::byte* source, std::uint64_t bytes) {
    if (bytes == 0) return;
    runs.push_back({reinterpret_cast<std::uintptr_t>(destination),
                    reinterpret_cast<std::uintptr_t>(source), bytes});
    keys.push_back(key);
  }

  std::size_t num_keys;
  std::vector<CopyRun> runs;
  std::vector<std::size_t> keys;  ///< By run.
};

/// Copies between a batch's buffers and its places in the store. begin() takes over the batch and
/// the places; end(), which is called once, gives them back.
template <typename Values>
class ObjectClient::Transfer : public CopyJob {
 public:
  Transfer(ObjectClient& client, Copies copies, std::uint64_t streaming_bytes)
      : CopyJob(std::move(copies.runs), client.pool_.num_threads(), streaming_bytes, client.sums_),
        client_(client),
        keys_(std::move(copies.keys)),
        sums_of_keys_(client.sums_ == CopySums::kMade ? copies.num_keys : 0) {}
  void begin(Accepted&& accepted, Values&& values) noexcept {
    accepted_.emplace(std::move(accepted));
    values_ = std::move(values);
  }

 protected:
  void end(CopyEnd how) noexcept final {
    Completion& completion = accepted_->completion();
    completion.ok = how == CopyEnd::kDone;
    if (!completion.ok) completion.error = "the client was closed before the batch was copied";
    give_back(how, completion);
    accepted_->end();
  }
  virtual void give_back(CopyEnd how, Completion& completion) noexcept = 0;
  /// The sum of each key, which is 0 of those without bytes; empty if none are made.
  [[nodiscard]] std::span<const std::uint64_t> sums_of_keys() {
    for (std::size_t i = 0; i < sums().size(); ++i) sums_of_keys_[keys_[i]] = sums()[i];
    return sums_of_keys_;
  }

  ObjectClient& client_;
  const std::vector<std::size_t> keys_;  ///< By run.
  std::vector<std::uint64_t> sums_of_keys_;
  std::optional<Accepted> accepted_;
  Values values_;
};

class ObjectClient::SetJob final : public Transfer<WritableValues> {
 public:
  using Transfer::Transfer;

 private:
  void give_back(CopyEnd how, Completion& /*completion*/) noexcept override {
    if (how == CopyEnd::kGivenUp) return client_.store_->abort(std::move(values_));
    KVFERRY_PAUSE_POINT("lmcache.before_commit");
    client_.store_->commit(std::move(values_), sums_of_keys());
    client_.stored_bytes_ += num_bytes();
  }
};

class ObjectClient::GetJob final : public Transfer<ReadableValues> {
 public:
  using Transfer::Transfer;

 private:
  void give_back(CopyEnd how, Completion& completion) noexcept override {
    std::vector<bool>& found = *completion.found;
    if (how == CopyEnd::kGivenUp || !refuse_damaged(found)) found.assign(found.size(), false);
    client_.store_->release(std::move(values_));
    const auto num_hits = static_cast<std::uint64_t>(std::count(found.begin(), found.end(), true));
    client_.num_hits_ += num_hits;
    client_.num_misses_ += found.size() - num_hits;
    for (std::size_t i = 0; i < keys_.size(); ++i) {
      if (found[keys_[i]]) client_.loaded_bytes_ += runs()[i].bytes;
    }
  }
  /// Returns false if there is no memory for it.
  bool refuse_damaged(std::vector<bool>& found) noexcept {
    const std::span<const std::uint64_t> sums = sums_of_keys();
    if (sums.empty()) return true;
    try {
      for (const std::size_t key : client_.store_->withdraw_damaged(values_, sums)) {
        found[key] = false;
      }
    } catch (const std::bad_alloc&) {
      return false;
    }
    return true;
  }
};

ObjectClient::ObjectClient(std::unique_ptr<ObjectStore> store, std::uint32_t num_workers,
                           Verification verify)
    : store_(std::move(store)),
      sums_(verify == Verification::kAll ? CopySums::kMade : CopySums::kNone),
      event_fd_(make_event_fd()),
      pool_(num_workers) {}

ObjectClient::~ObjectClient() {
  close();
  ::close(event_fd_);
}

ObjectClient::Accepted ObjectClient::accept() {
  Node node(1);
  MutexLock lock(mutex_);
  if (closing_) throw Error("the LMCache client was closed; make a new one");
  node.front().id = BatchId(next_id_++);
  ++num_open_;
  return {*this, std::move(node)};
}

void ObjectClient::complete(Node&& node) noexcept {
  MutexLock lock(mutex_);
  if (!node.front().ok) ++num_failed_;
  // drain() takes all completions, so one signal is enough until then.
  const bool is_first = completions_.empty();
  completions_.splice(completions_.end(), node);
  if (is_first) {
    const std::uint64_t one = 1;
    // The counter cannot be full, because drain() sets it to zero.
    static_cast<void>(::write(event_fd_, &one, sizeof one));
  }
  if (--num_open_ == 0) quiet_.notify_all();
}

std::vector<Completion> ObjectClient::drain() {
  std::vector<Completion> taken;
  MutexLock lock(mutex_);
  taken.reserve(completions_.size());
  std::uint64_t ignored = 0;
  static_cast<void>(::read(event_fd_, &ignored, sizeof ignored));
  for (Completion& completion : completions_) taken.push_back(std::move(completion));
  completions_.clear();
  return taken;
}

std::vector<std::shared_ptr<void>> ObjectClient::take_keepers() {
  std::vector<std::shared_ptr<void>> keepers;
  MutexLock lock(mutex_);
  keepers.reserve(completions_.size());
  for (Completion& completion : completions_) keepers.push_back(std::move(completion.keeper));
  return keepers;
}

BatchId ObjectClient::submit_set(std::span<const std::string_view> keys,
                                 std::span<const std::span<const std::byte>> values,
                                 std::shared_ptr<void> keeper) {
  KVFERRY_CHECK(keys.size() == values.size(), "a buffer for each key");
  Accepted accepted = accept();
  const BatchId id = accepted.id();
  accepted.completion().keeper = std::move(keeper);
  WritableValues places;
  try {
    auto reserved = store_->reserve(keys, sizes_of(values));
    if (!reserved.ok()) {
      accepted.completion().error = reserved.otherwise().why;
      return id;
    }
    places = std::move(reserved).value();
    Copies copies(keys.size());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (places.places()[i] == nullptr) continue;
      copies.add(i, places.places()[i], values[i].data(), values[i].size());
    }
    if (KVFERRY_FAULT_POINT("lmcache.set")) throw std::bad_alloc();
    const auto job = std::make_shared<SetJob>(*this, std::move(copies), BatchCopy::kStreamingBytes);
    job->begin(std::move(accepted), std::move(places));
    start(job, CopyUrgency::kStore);
  } catch (...) {
    store_->abort(std::move(places));
    accepted.withdraw();
    throw;
  }
  return id;
}

BatchId ObjectClient::submit_get(std::span<const std::string_view> keys,
                                 std::span<const std::span<std::byte>> buffers,
                                 std::shared_ptr<void> keeper) {
  KVFERRY_CHECK(keys.size() == buffers.size(), "a buffer for each key");
  Accepted accepted = accept();
  const BatchId id = accepted.id();
  accepted.completion().keeper = std::move(keeper);
  ReadableValues places;
  try {
    std::vector<bool>& found = accepted.completion().found.emplace(keys.size());
    places = store_->lease(keys, sizes_of(buffers));
    Copies copies(keys.size());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (places.places()[i] == nullptr) continue;
      found[i] = true;
      copies.add(i, buffers[i].data(), places.places()[i], buffers[i].size());
    }
    if (KVFERRY_FAULT_POINT("lmcache.get")) throw std::bad_alloc();
    const auto job = std::make_shared<GetJob>(*this, std::move(copies), kStreamingLoadBytes);
    job->begin(std::move(accepted), std::move(places));
    start(job, CopyUrgency::kLoad);
  } catch (...) {
    store_->release(std::move(places));
    accepted.withdraw();
    throw;
  }
  return id;
}

void ObjectClient::start(const std::shared_ptr<CopyJob>& job, CopyUrgency urgency) noexcept {
  if (job->num_bytes() <= kInlineBytes) {
    CopyPool::run(*job);
  } else {
    pool_.submit(job, urgency);
  }
}

template <typename Operation>
BatchId ObjectClient::perform(Operation operation) {
  Accepted accepted = accept();
  const BatchId id = accepted.id();
  try {
    accepted.completion().found = operation();
  } catch (...) {
    accepted.withdraw();
    throw;
  }
  accepted.completion().ok = true;
  accepted.end();
  return id;
}

BatchId ObjectClient::submit_exists(std::span<const std::string_view> keys) {
  return perform([&] { return store_->lookup(keys); });
}

BatchId ObjectClient::submit_delete(std::span<const std::string_view> keys) {
  return perform([&] { return store_->forget(keys); });
}

void ObjectClient::close() {
  {
    MutexLock lock(mutex_);
    closing_ = true;
  }
  pool_.close();
  MutexLock lock(mutex_);
  while (num_open_ > 0) quiet_.wait(mutex_);
}

ClientSnapshot ObjectClient::snapshot() const {
  ClientSnapshot now;
  now.store = store_->snapshot();
  now.num_hits_total = num_hits_;
  now.num_misses_total = num_misses_;
  now.stored_bytes_total = stored_bytes_;
  now.loaded_bytes_total = loaded_bytes_;
  MutexLock lock(mutex_);
  now.num_failed_total = num_failed_;
  now.num_open = num_open_;
  return now;
}

}  // namespace kvferry::lmcache
