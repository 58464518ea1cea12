// SPDX-License-Identifier: Apache-2.0
#include "kvferry/lmcache/copy_pool.hpp"

#include "kvferry/base/copy_threads.hpp"
#include "kvferry/base/error.hpp"
#include "kvferry/base/test_hooks.hpp"
#include "kvferry/gpu/tag_sum.hpp"

#include <algorithm>
#include <chrono>
#include <new>
#include <numeric>
#include <system_error>
#include <utility>

namespace kvferry::lmcache {
namespace {

using Clock = std::chrono::steady_clock;

/// The time that it takes to wake a thread (bench/RESULTS.md).
constexpr std::chrono::microseconds kLookOut{50};

constexpr auto kLoads = static_cast<std::size_t>(CopyUrgency::kLoad);

std::uint64_t bytes_of(const std::vector<CopyRun>& runs) {
  return std::accumulate(runs.begin(), runs.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const CopyRun& run) { return sum + run.bytes; });
}

std::byte* at(std::uintptr_t address) {
  return reinterpret_cast<std::byte*>(address);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace

CopyJob::CopyJob(std::vector<CopyRun> runs, std::uint32_t num_threads,
                 std::uint64_t streaming_bytes, CopySums sums)
    : runs_(std::move(runs)),
      num_bytes_(bytes_of(runs_)),
      batch_(runs_, num_bytes_, streaming_bytes),
      sums_(sums == CopySums::kMade ? runs_.size() : 0) {
  if (num_bytes_ < BatchCopy::kSharedBytes) {
    parts_.push_back({.run = 0, .offset = 0, .bytes = num_bytes_});
  } else {
    parts_ = batch_.parts(num_bytes_, num_threads);
  }
  num_left_ = num_parts();
}

bool CopyJob::copy_next() noexcept {
  const std::uint32_t mine = next_.fetch_add(1, std::memory_order_relaxed);
  if (mine >= num_parts()) return false;
  KVFERRY_PAUSE_POINT("lmcache.before_part");
  copy(parts_[mine]);
  ended(1);
  return true;
}

void CopyJob::copy(const BatchCopy::Part& part) noexcept {
  if (sums_.empty()) return batch_.copy(part);
  const auto copy_and_sum = batch_.streams() ? &gpu::copy_streaming_and_sum : &gpu::copy_and_sum;
  batch_.for_each(part, [&](std::size_t number, std::uint64_t offset, std::uint64_t bytes) {
    const CopyRun& run = runs_[number];
    const std::span<const std::byte> from(at(run.source + offset), bytes);
    const std::uint64_t sum =
        copy_and_sum(at(run.destination + offset), from, offset, from.data() + bytes);
    std::atomic_ref(sums_[number]).fetch_add(sum, std::memory_order_relaxed);
  });
}

void CopyJob::give_up() noexcept {
  given_up_ = true;
  const std::uint32_t first = next_.exchange(num_parts(), std::memory_order_relaxed);
  if (first < num_parts()) ended(num_parts() - first);
}

void CopyJob::ended(std::uint32_t num_parts) noexcept {
  // The thread that ends the job sees the parts that other threads have copied.
  if (num_left_.fetch_sub(num_parts, std::memory_order_acq_rel) != num_parts) return;
  end(given_up_ ? CopyEnd::kGivenUp : CopyEnd::kDone);
}

CopyPool::CopyPool(std::uint32_t num_threads)
    : num_threads_(num_threads == 0 ? num_copy_threads() : num_threads) {
  try {
    threads_.reserve(num_threads_);
    for (std::uint32_t i = 0; i < num_threads_; ++i) {
      if (KVFERRY_FAULT_POINT("lmcache.thread")) {
        throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
      }
      threads_.emplace_back([this] { work(); });
    }
  } catch (const std::system_error& error) {
    if (threads_.empty()) {
      throw ResourceError(std::string("no thread can be started: ") + error.what() +
                          "; raise the limit on processes (ulimit -u, pids.max)");
    }
  }
}

CopyPool::~CopyPool() { close(); }

void CopyPool::submit(const std::shared_ptr<CopyJob>& job, CopyUrgency urgency) noexcept {
  try {
    MutexLock lock(mutex_);
    if (!closing_) {
      queues_[static_cast<std::size_t>(urgency)].push_back(job);
      count_waiting();
      if (num_asleep_ > 0) job->num_parts() > 1 ? submitted_.notify_all() : submitted_.notify_one();
      return;
    }
  } catch (const std::bad_alloc&) {
    return run(*job);
  }
  job->give_up();
}

void CopyPool::run(CopyJob& job) {
  while (job.copy_next()) {
  }
}

void CopyPool::work() {
  MutexLock lock(mutex_);
  while (!closing_) {
    const std::shared_ptr<CopyJob> job = next_job();
    if (!job) {
      await_job();
      continue;
    }
    const bool is_load = has_loads_;
    mutex_.unlock();
    // A store stops for a load that arrives.
    while (job->copy_next() && (is_load || !has_loads_)) {
    }
    mutex_.lock();
  }
}

std::shared_ptr<CopyJob> CopyPool::next_job() {
  for (Queue& queue : queues_) {
    while (!queue.empty() && !queue.front()->has_parts()) queue.pop_front();
  }
  count_waiting();
  for (const Queue& queue : queues_) {
    if (!queue.empty()) return queue.front();
  }
  return nullptr;
}

void CopyPool::await_job() {
  mutex_.unlock();
  const auto end = Clock::now() + kLookOut;
  while (!has_jobs_ && Clock::now() < end) std::this_thread::yield();
  mutex_.lock();
  if (has_jobs_ || closing_) return;
  ++num_asleep_;
  submitted_.wait(mutex_);
  --num_asleep_;
}

void CopyPool::count_waiting() {
  has_loads_ = !queues_[kLoads].empty();
  has_jobs_ = std::any_of(queues_.begin(), queues_.end(),
                          [](const Queue& queue) { return !queue.empty(); });
}

void CopyPool::close() {
  std::vector<std::thread> threads;
  std::array<Queue, 2> given_up;
  {
    MutexLock lock(mutex_);
    closing_ = true;
    given_up = std::exchange(queues_, {});
    count_waiting();
    threads = std::move(threads_);
    submitted_.notify_all();
  }
  for (const Queue& queue : given_up) {
    for (const auto& job : queue) job->give_up();
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace kvferry::lmcache
