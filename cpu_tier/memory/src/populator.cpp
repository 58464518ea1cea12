// SPDX-License-Identifier: Apache-2.0
#include "populator.hpp"

#include <algorithm>
#include <atomic>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/partitioner.h>
#include <oneapi/tbb/task_arena.h>
#include <pthread.h>
#include <sched.h>
#include <utility>

namespace kvferry::cpu_tier {
namespace {

constexpr std::uint32_t kMostThreads = 16;

/// What one thread populates at a time: it takes some milliseconds, so that a stop is prompt, and
/// it is whole huge pages, so that two threads never fault in the same one.
constexpr std::uint64_t kChunkBytes = std::uint64_t{16} << 20U;

/// ThreadSanitizer does not see what orders TBB's threads, because TBB is not built with it. A
/// function that such a thread enters reads its arguments unseen, and every function that it calls
/// begins by acquiring what the caller released (tests/tsan.supp has TBB's own part).
#if defined(__SANITIZE_THREAD__)
#define KVFERRY_ENTERED_FROM_TBB __attribute__((no_sanitize_thread, noinline))
#else
#define KVFERRY_ENTERED_FROM_TBB
#endif

std::uint32_t usual_num_threads(const MemoryPlacement& placement) {
  std::uint32_t num_cpus = 0;
  if (placement.topology) {
    for (const NumaNode& node : placement.topology->nodes()) {
      if (!placement.node || *placement.node == node.number) num_cpus += node.num_cpus;
    }
  } else {
    cpu_set_t cpus;
    if (::sched_getaffinity(0, sizeof(cpus), &cpus) == 0) {
      num_cpus = static_cast<std::uint32_t>(CPU_COUNT(&cpus));
    }
  }
  return std::clamp(num_cpus, 1U, kMostThreads);
}

/// Binds this thread to the placement's node, if there is one, during its lifetime, because TBB's
/// threads serve other arenas too. That is two system calls for a chunk that takes milliseconds.
/// Rejected: an observer of TBB. A thread that lingers in the arena when the arena ends is never
/// told that it left.
class BoundToNode {
 public:
  explicit BoundToNode(const MemoryPlacement& placement) {
    if (!placement.node) return;
    if (::pthread_getaffinity_np(::pthread_self(), sizeof(before_), &before_) != 0) return;
    is_bound_ = placement.topology->bind_this_thread(*placement.node);
  }
  ~BoundToNode() {
    if (!is_bound_) return;
    static_cast<void>(::pthread_setaffinity_np(::pthread_self(), sizeof(before_), &before_));
  }
  BoundToNode(const BoundToNode&) = delete;
  BoundToNode& operator=(const BoundToNode&) = delete;

 private:
  cpu_set_t before_{};
  bool is_bound_ = false;
};

/// One call of populate().
class Job {
 public:
  Job(const HostMapping& mapping, std::span<std::byte> part, const MemoryPlacement& placement,
      const std::stop_token& stop)
      : mapping_(mapping), part_(part), placement_(placement), stop_(stop) {
    made_.store(true, std::memory_order_release);
  }

  [[nodiscard]] std::uint64_t num_chunks() const {
    return (part_.size() + kChunkBytes - 1) / kChunkBytes;
  }
  void populate(std::uint64_t chunk) {
    static_cast<void>(made_.load(std::memory_order_acquire));
    if (stop_.stop_requested()) return;
    const BoundToNode bound(placement_);
    const std::uint64_t begin = chunk * kChunkBytes;
    mapping_.populate(part_.subspan(begin, std::min(kChunkBytes, part_.size() - begin)));
    num_done_.fetch_add(1, std::memory_order_acq_rel);
  }
  [[nodiscard]] bool done() const {
    return num_done_.load(std::memory_order_acquire) == num_chunks();
  }

 private:
  const HostMapping& mapping_;
  const std::span<std::byte> part_;
  const MemoryPlacement& placement_;
  const std::stop_token& stop_;
  std::atomic<bool> made_{false};
  std::atomic<std::uint64_t> num_done_{0};
};

/// The function object that TBB's threads call.
struct PopulateChunk {
  Job* job;
  KVFERRY_ENTERED_FROM_TBB void operator()(std::uint64_t chunk) const { job->populate(chunk); }
};

}  // namespace

struct Populator::Team {
  explicit Team(std::uint32_t num_threads) : arena(static_cast<int>(num_threads)) {}

  tbb::task_arena arena;
};

Populator::Populator(MemoryPlacement placement, std::uint32_t num_threads)
    : placement_(std::move(placement)),
      num_threads_(std::min(num_threads == 0 ? usual_num_threads(placement_) : num_threads,
                            static_cast<std::uint32_t>(tbb::info::default_concurrency()))),
      team_(std::make_unique<Team>(num_threads_)) {}

Populator::~Populator() = default;

bool Populator::populate(const HostMapping& mapping, std::span<std::byte> part,
                         const std::stop_token& stop) const {
  Job job(mapping, part, placement_, stop);
  team_->arena.execute([&] {
    tbb::parallel_for(std::uint64_t{0}, job.num_chunks(), PopulateChunk{&job},
                      tbb::simple_partitioner());
  });
  return job.done();
}

}  // namespace kvferry::cpu_tier
