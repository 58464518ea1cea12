// SPDX-License-Identifier: Apache-2.0
// Engines of a shared tier whose scheduler and rank are processes of their own. Each of the two
// ends at any moment, cleanly or by a kill, while the other lives on: a scheduler that is shut down
// leaves a rank that goes on writing and reading what it was told. Nobody reads what was not
// stored, no slot is lost.
#include "kvferry/base/test_hooks.hpp"

#include "asked.hpp"
#include "rank_mailbox.hpp"
#include "shared_worker.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
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
using Kind = RankMailbox::Kind;

/// Fewer than slots, so that most lookups find something.
constexpr std::uint64_t kNumKeys = 10;
constexpr std::size_t kNumEngines = 3;
/// Beside these, those of which one process lives on, and holds what the engine had.
constexpr std::size_t kMostLeft = 2;

/// A scheduler's life: stores and loads, by its rank, until it is told to end.
class Scheduler {
 public:
  Scheduler(const SharedTierRig& rig, RankMailbox& mail, const std::string& name,
            std::uint64_t seed)
      : mail_(mail),
        random_(static_cast<unsigned>(seed)),
        instance_(rig, {.name = name, .name_space = 1, .grace = 1ms}),
        keeper_(std::make_unique<TierKeeper>(instance_.all(), instance_.directory())) {}

  /// As a shutdown does it: with what is under way on the rank.
  ~Scheduler() {
    for (Transfer& one : under_way_) {
      instance_.tier().leave_behind(instance_.tier().abort(std::move(one.writable)));
      instance_.tier().leave_behind(std::move(one.aborted));
      instance_.tier().leave_behind(std::move(one.quarantined));
      instance_.tier().leave_behind(std::move(one.lease));
    }
    keeper_.reset();
  }
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  void step() {
    settle();
    const std::uint64_t what = draw(100);
    if (what < 40) {
      store();
    } else if (what < 85) {
      load();
    } else if (what < 95) {
      instance_.all().end_step();
    } else if (what < 98) {
      doubt();
    } else {
      static_cast<void>(instance_.directory().sweep());
    }
    ++mail_.num_steps;
  }

 private:
  struct Transfer {
    std::vector<std::uint32_t> orders;
    WritableSlots writable;
    AbortedSlots aborted;
    QuarantinedSlots quarantined;
    Lease lease;
  };

  std::uint64_t draw(std::uint64_t below) { return random_() % below; }
  /// Tells the rank of all slots, waiting for nothing: those for which there is no order are left
  /// out, and are as many as are returned.
  std::size_t tell(Transfer& transfer, Kind kind, std::span<const SlotId> slots,
                   std::uint64_t first_key) {
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const SlotPlace place = place_of(slots[i], Instance::kChunkSlots);
      const std::uint32_t generation = instance_.directory().slot(place).load().generation();
      const auto number = mail_.tell(kind, place, first_key + i, generation);
      if (!number) return slots.size() - i;
      transfer.orders.push_back(*number);
    }
    return 0;
  }

  void store() {
    const std::uint64_t first = draw(kNumKeys);
    auto reserved = instance_.all().reserve(Instance::kOnly, keys(first, 1 + draw(3)));
    if (!reserved.ok()) return;
    Transfer transfer;
    transfer.writable = std::move(reserved).value().hand_over();
    const std::size_t num_untold = tell(transfer, Kind::kWrite, transfer.writable.slots(), first);
    const OneClass tier = instance_.tier();
    tier.release(tier.abort(transfer.writable.split_off(transfer.writable.size() - num_untold)));
    if (!transfer.orders.empty()) under_way_.push_back(std::move(transfer));
  }

  void load() {
    const std::uint64_t first = draw(kNumKeys);
    instance_.all().hold_still();
    const PrefixHit hit = instance_.tier().lookup_prefix(keys(first, 1 + draw(4)));
    auto leased = instance_.tier().lease(hit, hit.size());
    if (!leased.ok() || hit.size() == 0) return;
    Transfer transfer;
    transfer.lease = std::move(leased).value();
    const std::size_t num_untold = tell(transfer, Kind::kRead, transfer.lease.slots(), first);
    instance_.tier().release(transfer.lease.split_off(transfer.lease.size() - num_untold));
    if (!transfer.orders.empty()) under_way_.push_back(std::move(transfer));
  }

  /// A reset, or a rank that is taken for lost.
  void doubt() {
    const OneClass tier = instance_.tier();
    for (Transfer& one : under_way_) {
      one.aborted.merge(tier.abort(std::move(one.writable)));
      if (draw(2) == 0) one.quarantined.merge(tier.quarantine(std::move(one.aborted)));
      if (draw(8) == 0) tier.forget(one.lease);
    }
  }

  void settle() {
    const OneClass tier = instance_.tier();
    std::erase_if(under_way_, [&](Transfer& one) {
      std::erase_if(one.orders, [this](std::uint32_t number) { return mail_.take_end(number); });
      if (!one.orders.empty()) return false;
      tier.commit(std::move(one.writable));
      tier.release(std::move(one.aborted));
      tier.release(std::move(one.quarantined));
      tier.release(std::move(one.lease));
      return true;
    });
  }

  RankMailbox& mail_;
  std::minstd_rand random_;
  Instance instance_;
  std::unique_ptr<TierKeeper> keeper_;
  std::vector<Transfer> under_way_;
};

class RankDeathsTest : public ::testing::Test {
 protected:
  struct Engine {
    RankMailbox* mail = nullptr;
    pid_t scheduler = 0;  ///< 0: it has ended.
    pid_t rank = 0;
  };

  ~RankDeathsTest() override {
    for (Engine& engine : engines_) {
      kill_and_wait(engine.scheduler);
      kill_and_wait(engine.rank);
      ::munmap(engine.mail, sizeof(RankMailbox));
    }
  }

  /// `dies_leaving`: it is killed in the middle of its clean end.
  void begin(bool dies_leaving = false) {
    const std::uint64_t number = next_number_++;
    const std::string name = "engine-" + std::to_string(number);
    void* const memory = ::mmap(nullptr, sizeof(RankMailbox), PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    Engine engine{.mail = new (memory) RankMailbox};
    engine.rank = ::fork();
    if (engine.rank == 0) engine.mail->live_as_rank(rig_, name, number);
    ASSERT_TRUE(await([&] { return engine.mail->rank_is_there.load(); })) << "no rank";
    engine.scheduler = ::fork();
    if (engine.scheduler == 0) {
      if (dies_leaving) {
        test_hooks::on_pause("tier_directory.leaving", [] { ::raise(SIGKILL); });
      }
      {
        Scheduler scheduler(rig_, *engine.mail, name, number);
        while (!engine.mail->scheduler_ends) scheduler.step();
      }
      ::_exit(0);
    }
    engines_.push_back(engine);
  }

  void end_scheduler(Engine& engine, bool cleanly) {
    if (engine.scheduler == 0) return;
    if (!cleanly) return kill_and_wait(engine.scheduler);
    engine.mail->scheduler_ends = true;
    int status = 0;
    ASSERT_EQ(::waitpid(engine.scheduler, &status, 0), engine.scheduler);
    engine.scheduler = 0;
    ASSERT_TRUE((WIFEXITED(status) && WEXITSTATUS(status) == 0) ||
                (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL))
        << "it ended with " << status;
  }
  static void kill_and_wait(pid_t& process) {
    if (process == 0) return;
    ::kill(process, SIGKILL);
    EXPECT_EQ(::waitpid(process, nullptr, 0), process);
    process = 0;
  }
  void forget(std::size_t which) {
    Engine& engine = engines_[which];
    kill_and_wait(engine.scheduler);
    kill_and_wait(engine.rank);
    num_written_ += engine.mail->num_written;
    num_read_ += engine.mail->num_read;
    num_wrong_ += engine.mail->num_wrong;
    ::munmap(engine.mail, sizeof(RankMailbox));
    engines_.erase(engines_.begin() + static_cast<std::ptrdiff_t>(which));
  }
  template <class Condition>
  static bool await(const Condition& condition) {
    for (int i = 0; i < 60000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(1ms);
    }
    return false;
  }
  [[nodiscard]] std::uint64_t num_wrong() const {
    std::uint64_t sum = num_wrong_;
    for (const Engine& engine : engines_) sum += engine.mail->num_wrong;
    return sum;
  }
  /// Copies that ranks have ended.
  [[nodiscard]] std::uint64_t num_ended() const {
    std::uint64_t sum = num_written_ + num_read_;
    for (const Engine& engine : engines_) sum += engine.mail->num_written + engine.mail->num_read;
    return sum;
  }
  /// The engines that have both processes take steps.
  void expect_progress() {
    const auto steps = [this] {
      std::uint64_t sum = 0;
      for (const Engine& engine : engines_) sum += engine.mail->num_steps;
      return sum;
    };
    const std::uint64_t before = steps();
    EXPECT_TRUE(await([&] { return steps() >= before + 100; })) << "those that live stand still";
  }

  const SharedTierRig rig_{Instance::kShape};
  std::vector<Engine> engines_;
  std::uint64_t next_number_ = 0;
  std::uint64_t num_written_ = 0;
  std::uint64_t num_read_ = 0;
  std::uint64_t num_wrong_ = 0;
};

TEST_F(RankDeathsTest, WhicheverOfAnEnginesProcessesLivesOnNothingIsWrongAndNothingIsLost) {
  const std::uint64_t num_deaths = asked("KVFERRY_NUM_DEATHS", 60);
  std::minstd_rand random(static_cast<unsigned>(asked("KVFERRY_SEED", 1)));
  for (std::size_t i = 0; i < kNumEngines; ++i) begin(i == 0);
  for (std::uint64_t death = 0; death < num_deaths; ++death) {
    // Some copies later, if any are under way.
    const std::uint64_t wanted = num_ended() + random() % 8;
    for (int i = 0; i < 50 && num_ended() < wanted; ++i) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 1000));
    Engine& engine = engines_[random() % engines_.size()];
    const std::uint64_t how = random() % 8;
    if (how == 0) {
      kill_and_wait(engine.rank);
    } else {
      end_scheduler(engine, how < 7);
    }
    if (HasFatalFailure()) return;
    // Ranks, and a scheduler whose rank is gone, live on for a while beside new engines.
    begin(random() % 8 == 0);
    while (engines_.size() > kNumEngines + kMostLeft) forget(random() % 2);
    ASSERT_EQ(num_wrong(), 0U) << "after " << death << " deaths";
  }
  begin();
  expect_progress();
  const auto any_was_read = [this] {
    return num_read_ > 0 || std::any_of(engines_.begin(), engines_.end(),
                                        [](const Engine& each) { return each.mail->num_read > 0; });
  };
  EXPECT_TRUE(await(any_was_read)) << "nothing is found";
  while (!engines_.empty()) forget(0);
  EXPECT_EQ(num_wrong_, 0U);
  EXPECT_GT(num_written_, 0U);
  EXPECT_GT(num_read_, 0U);
  std::printf("%llu blocks written and %llu read by ranks\n",
              static_cast<unsigned long long>(num_written_),
              static_cast<unsigned long long>(num_read_));
  expect_no_slot_is_lost(rig_);
}

}  // namespace
}  // namespace kvferry::cpu_tier
