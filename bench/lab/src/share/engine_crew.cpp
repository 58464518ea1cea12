// SPDX-License-Identifier: Apache-2.0
#include "share/engine_crew.hpp"

#include "kvferry/base/error.hpp"

#include <csignal>
#include <cstdio>
#include <new>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace kvferry::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPatience = std::chrono::minutes(1);

}  // namespace

EngineCrew::EngineCrew(const SharedWorkShape& shape,
                       const std::vector<std::filesystem::path>& tiers)
    : num_engines_(tiers.size()) {
  void* const memory = ::mmap(nullptr, num_engines_ * sizeof(Tally), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw ResourceError("there is no memory that processes can share");
  tallies_ = static_cast<Tally*>(memory);
  for (std::size_t i = 0; i < num_engines_; ++i) new (&tallies_[i]) Tally;
  for (std::size_t i = 0; i < num_engines_; ++i) {
    const pid_t process = ::fork();
    if (process == 0) work(shape, tiers[i], i);
    if (process > 0) processes_.push_back(process);
  }
}

EngineCrew::~EngineCrew() {
  for (const pid_t process : processes_) {
    ::kill(process, SIGKILL);
    ::waitpid(process, nullptr, 0);
  }
  ::munmap(tallies_, num_engines_ * sizeof(Tally));
}

void EngineCrew::work(const SharedWorkShape& shape, const std::filesystem::path& tier,
                      std::size_t engine) noexcept {
  int status = 0;
  try {
    Tally& tally = tallies_[engine];
    SharedWork work(shape, tier, "bench-" + std::to_string(::getpid()), engine);
    while (!tally.told_to_end.load(std::memory_order_relaxed)) {
      tally.num_found.fetch_add(work.step().num_found, std::memory_order_relaxed);
      tally.num_steps.fetch_add(1, std::memory_order_release);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvferry-lab: an engine gave up: %s\n", error.what());
    status = 1;
  }
  // This process must not end what it has inherited from its parent.
  ::_exit(status);
}

void EngineCrew::await_steps(std::uint64_t count) {
  const auto end = Clock::now() + kPatience;
  for (std::size_t i = 0; i < num_engines_; ++i) {
    while (tallies_[i].num_steps.load(std::memory_order_acquire) < count) {
      if (processes_.size() < num_engines_ || Clock::now() > end ||
          ::waitpid(processes_[i], nullptr, WNOHANG) != 0) {
        throw ResourceError("an engine does not work; it has made " +
                            std::to_string(tallies_[i].num_steps.load()) + " steps of " +
                            std::to_string(count));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

EngineCrew::Progress EngineCrew::so_far() const {
  Progress all;
  for (std::size_t i = 0; i < num_engines_; ++i) {
    all.num_steps += tallies_[i].num_steps.load(std::memory_order_acquire);
    all.num_found += tallies_[i].num_found.load(std::memory_order_relaxed);
  }
  return all;
}

EngineCrew::Progress EngineCrew::watch(std::chrono::nanoseconds time) const {
  const Progress before = so_far();
  std::this_thread::sleep_for(time);
  const Progress after = so_far();
  return {after.num_steps - before.num_steps, after.num_found - before.num_found};
}

void EngineCrew::stop(std::size_t engine) { ::kill(processes_[engine], SIGSTOP); }

bool EngineCrew::end() {
  bool well = processes_.size() == num_engines_;
  for (std::size_t i = 0; i < num_engines_; ++i) tallies_[i].told_to_end.store(true);
  for (const pid_t process : processes_) {
    ::kill(process, SIGCONT);
    int status = 0;
    well &=
        ::waitpid(process, &status, 0) == process && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  processes_.clear();
  return well;
}

}  // namespace kvferry::bench
