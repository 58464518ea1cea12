// SPDX-License-Identifier: Apache-2.0
#include "host/copy_team.hpp"

#include "kvferry/base/test_hooks.hpp"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace kvferry::gpu {
namespace {

/// To wake a thread takes about as long (40 us, bench/RESULTS.md): so copies that follow one
/// another find the helpers awake, and a look-out that was for nothing costs no more than the
/// wake-up.
constexpr std::chrono::microseconds kLookOut{50};

/// Looks for `seen` for kLookOut, giving way to whoever has work.
template <typename Seen>
void look_out_for(Seen seen) {
  const auto end = std::chrono::steady_clock::now() + kLookOut;
  while (!seen() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
}

}  // namespace

CopyTeam::CopyTeam(std::uint32_t num_helpers) : num_helpers_(num_helpers), process_(::getpid()) {}

CopyTeam::~CopyTeam() {
  std::vector<std::thread> helpers;
  {
    MutexLock lock(mutex_);
    closing_ = true;
    submitted_.notify_all();
    helpers = std::move(helpers_);
  }
  for (std::thread& helper : helpers) helper.join();
}

bool CopyTeam::is_of_this_process() const { return ::getpid() == process_; }

void CopyTeam::run(std::uint32_t num_parts, const Part& part) {
  Job job{part, num_parts};
  if (num_parts < 2 || num_helpers_ == 0 || !is_of_this_process()) {
    work_on(job);
    return;
  }
  {
    MutexLock lock(mutex_);
    start_helpers();
    ++num_busy_;
    jobs_.push_back(&job);
    tell_helpers();
  }
  work_on(job);
  MutexLock lock(mutex_);
  end(job);
}

void CopyTeam::work_on(Job& job) {
  for (;;) {
    const std::uint32_t mine = job.next.fetch_add(1, std::memory_order_relaxed);
    if (mine >= job.num_parts) return;
    job.part(mine);
  }
}

void CopyTeam::start_helpers() {
  while (helpers_.size() < num_helpers_) {
    if (KVFERRY_FAULT_POINT("gpu.host.helper")) return;
    try {
      helpers_.emplace_back([this] { help(); });
    } catch (const std::system_error&) {
      return;
    }
  }
}

void CopyTeam::help() {
  MutexLock lock(mutex_);
  while (!closing_) {
    Job* const job = next_job();
    if (job == nullptr) {
      await_job();
      continue;
    }
    ++job->num_helpers;
    ++num_busy_;
    tell_helpers();
    mutex_.unlock();
    work_on(*job);
    mutex_.lock();
    --num_busy_;
    if (--job->num_helpers == 0) ended_.notify_all();
  }
}

CopyTeam::Job* CopyTeam::next_job() {
  std::erase_if(jobs_, [](const Job* job) { return job->next >= job->num_parts; });
  tell_helpers();
  if (!wanted_) return nullptr;
  return *std::min_element(jobs_.begin(), jobs_.end(), [](const Job* a, const Job* b) {
    return a->num_helpers < b->num_helpers;
  });
}

void CopyTeam::await_job() {
  mutex_.unlock();
  look_out_for([this] { return wanted_.load(); });
  mutex_.lock();
  if (wanted_ || closing_) return;
  ++num_asleep_;
  submitted_.wait(mutex_);
  --num_asleep_;
}

void CopyTeam::end(Job& job) {
  --num_busy_;
  std::erase(jobs_, &job);
  tell_helpers();
  if (job.num_helpers == 0) return;
  mutex_.unlock();
  look_out_for([&job] { return job.num_helpers == 0; });
  mutex_.lock();
  while (job.num_helpers > 0) ended_.wait(mutex_);
}

void CopyTeam::tell_helpers() {
  wanted_ = !jobs_.empty() && num_busy_ < num_threads();
  if (wanted_ && num_asleep_ > 0) submitted_.notify_one();
}

void copy_with(CopyTeam& team, const BatchCopy& batch, std::uint64_t end) {
  if (end < BatchCopy::kSharedBytes || team.num_threads() == 1) return batch.copy(0, end);
  const std::vector<BatchCopy::Part> parts = batch.parts(end, team.num_threads());
  team.run(static_cast<std::uint32_t>(parts.size()),
           [&](std::uint32_t i) { batch.copy(parts[i]); });
}

}  // namespace kvferry::gpu
