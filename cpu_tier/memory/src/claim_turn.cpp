// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/memory/claim_turn.hpp"

#include <cerrno>
#include <fcntl.h>
#include <sys/file.h>
#include <thread>

namespace kvferry::cpu_tier {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kBetweenTries{1};

}  // namespace

ClaimTurn::ClaimTurn(const MachineRoot& machine, std::chrono::milliseconds patience)
    : directory_(OwnDescriptor::open(machine.claims.c_str(), O_RDONLY | O_DIRECTORY)) {
  const Clock::time_point end = Clock::now() + patience;
  while (directory_ && ::flock(directory_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK || Clock::now() >= end) {
      directory_ = OwnDescriptor();
      return;
    }
    std::this_thread::sleep_for(kBetweenTries);
  }
}

}  // namespace kvferry::cpu_tier
