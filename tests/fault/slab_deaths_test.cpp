// SPDX-License-Identifier: Apache-2.0
// Engine instances of a shared tier die, or are stopped, in the middle of what they do: at every
// pause point, and at random. The others go on, nobody reads what was not stored, no slot is lost.
#include "kvferry/base/test_hooks.hpp"

#include "asked.hpp"
#include "shared_worker.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <random>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

using namespace std::chrono_literals;

/// Every one of a shared tier's metadata.
constexpr const char* kPoints[] = {
    "tier_directory.record_claimed",    "tier_directory.filling",
    "tier_directory.filling_with_key",  "tier_directory.published_without_hint",
    "tier_directory.leased_unchecked",  "tier_directory.in_a_sweep",
    "tier_directory.swept_and_not_free"};

/// What the processes tell the test.
struct SlabTally {
  std::atomic<std::uint64_t> num_steps{0};
  std::atomic<std::uint64_t> num_read{0};
  std::atomic<std::uint64_t> num_wrong{0};
};

/// Where a process gets a signal from itself: at one passage of a pause point.
struct Fate {
  const char* point = nullptr;
  std::uint64_t passage = 0;
  int signal = 0;
};

class SlabDeathsTest : public ::testing::Test {
 protected:
  SlabDeathsTest() {
    void* const memory = ::mmap(nullptr, sizeof(SlabTally), PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    tally_ = new (memory) SlabTally;
  }
  ~SlabDeathsTest() override {
    for (const pid_t process : processes_) {
      ::kill(process, SIGKILL);
      ::waitpid(process, nullptr, 0);
    }
    ::munmap(tally_, sizeof(SlabTally));
  }

  /// A process that lives until it is killed.
  pid_t begin(const Fate& fate = {}) {
    const int number = next_number_++;
    const pid_t process = ::fork();
    if (process == 0) {
      if (fate.point != nullptr) {
        test_hooks::on_pause(fate.point, [fate, left = fate.passage]() mutable {
          if (left > 0 && --left == 0) ::raise(fate.signal);
        });
      }
      SharedWorker worker(rig_, number);
      std::uint64_t num_read = 0;
      for (;;) {
        worker.step();
        tally_->num_steps.fetch_add(1);
        tally_->num_read.fetch_add(worker.num_read() - std::exchange(num_read, worker.num_read()));
        if (!worker.all_right()) tally_->num_wrong.fetch_add(1);
      }
    }
    processes_.push_back(process);
    return process;
  }
  /// One whose fate has come. A sweep has something to do where somebody has just died, and others
  /// may be faster: as many attempts as it takes.
  pid_t begin_and_await(const Fate& fate) {
    for (int attempt = 0; attempt < 200; ++attempt) {
      const pid_t victim = begin(fate);
      const pid_t bait = begin();
      std::this_thread::sleep_for(2ms);
      end(bait);
      int status = 0;
      for (int i = 0; i < 50; ++i) {
        if (::waitpid(victim, &status, WNOHANG | WUNTRACED) == victim) return victim;
        std::this_thread::sleep_for(1ms);
      }
      end(victim);
    }
    ADD_FAILURE() << "nobody came to " << fate.point;
    return begin();
  }
  void expect_progress(const std::string& when) {
    const std::uint64_t before = tally_->num_steps.load();
    for (int i = 0; i < 4000 && tally_->num_steps.load() < before + 200; ++i) {
      std::this_thread::sleep_for(1ms);
    }
    EXPECT_GE(tally_->num_steps.load(), before + 200) << when;
  }
  void end(pid_t process) {
    ::kill(process, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(process, &status, 0), process);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        << "it ended by itself, with " << status;
    std::erase(processes_, process);
  }
  void end_all() {
    for (const pid_t process : std::vector(processes_)) end(process);
    EXPECT_EQ(tally_->num_wrong.load(), 0U);
    EXPECT_GT(tally_->num_read.load(), 0U);
    expect_no_slot_is_lost(rig_);
  }
  [[nodiscard]] double steps_per_second(std::chrono::milliseconds time) const {
    const std::uint64_t before = tally_->num_steps.load();
    const auto began = std::chrono::steady_clock::now();
    std::this_thread::sleep_for(time);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    return static_cast<double>(tally_->num_steps.load() - before) / took.count();
  }

  const SharedTierRig rig_{Instance::kShape};
  SlabTally* tally_ = nullptr;
  std::vector<pid_t> processes_;
  int next_number_ = 0;
};

TEST_F(SlabDeathsTest, KilledAtEveryPausePointNothingIsWrongAndNothingIsLost) {
  begin();
  begin();
  for (const char* const point : kPoints) {
    const pid_t victim = begin_and_await({point, 1, SIGKILL});
    std::erase(processes_, victim);
    expect_progress(point);
  }
  end_all();
}

TEST_F(SlabDeathsTest, StoppedAtEveryPausePointNobodyStopsTheOthers) {
  begin();
  begin();
  for (const char* const point : kPoints) {
    const pid_t victim = begin_and_await({point, 1, SIGSTOP});
    expect_progress(point);
    ::kill(victim, SIGCONT);
    expect_progress(std::string(point) + ", gone on");
    end(victim);
  }
  end_all();
}

TEST_F(SlabDeathsTest, KilledAtRandomNothingIsWrongAndNothingIsLost) {
  const std::uint64_t num_deaths = asked("KVFERRY_NUM_DEATHS", 60);
  std::minstd_rand random(static_cast<unsigned>(asked("KVFERRY_SEED", 1)));
  for (int i = 0; i < 3; ++i) begin();
  double sum_of_shares = 0;
  int num_measured = 0;
  for (std::uint64_t death = 0; death < num_deaths; ++death) {
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 6000));
    const pid_t victim = processes_[random() % processes_.size()];
    if (random() % 16 == 0) {
      const double with_all = steps_per_second(20ms);
      ::kill(victim, SIGSTOP);
      const double with_two = steps_per_second(20ms);
      // On a busy machine none of them may have made a step in that time.
      if (with_all > 0) {
        sum_of_shares += with_two / with_all;
        ++num_measured;
      }
    }
    end(victim);
    begin();
    if (HasFatalFailure()) return;
    ASSERT_EQ(tally_->num_wrong.load(), 0U) << "after " << death << " deaths";
  }
  expect_progress("behind the last death");
  if (num_measured > 0) {
    std::printf("one of three stopped: the others do %.2f of all three's steps\n",
                sum_of_shares / num_measured);
  }
  end_all();
}

}  // namespace
}  // namespace kvferry::cpu_tier
