// SPDX-License-Identifier: Apache-2.0
#include "valve.hpp"

#include "kvferry/base/mixed_bits.hpp"

#include <chrono>

namespace kvferry::transfer {

void Valve::hold(Kind kind, std::uint64_t let_through) {
  MutexLock lock(mutex_);
  gate(kind).held = true;
  gate(kind).let_through = let_through;
  opened_.notify_all();
}

void Valve::open(Kind kind) {
  MutexLock lock(mutex_);
  gate(kind).held = false;
  opened_.notify_all();
}

void Valve::open_all() {
  MutexLock lock(mutex_);
  for (Gate& gate : gates_) gate.held = false;
  opened_.notify_all();
}

void Valve::fail_nth(Kind kind, std::uint64_t nth) {
  MutexLock lock(mutex_);
  gate(kind).fail_in = nth;
}

void Valve::dawdle(Kind kind, std::chrono::microseconds most) {
  MutexLock lock(mutex_);
  gate(kind).most_delay = most;
}

void Valve::lose_nth(Kind kind, std::uint64_t nth, gpu::LostMemory memory) {
  MutexLock lock(mutex_);
  gate(kind).lose_in = nth;
  gate(kind).loses = memory;
}

std::uint64_t Valve::num_arrived(Kind kind) const {
  MutexLock lock(mutex_);
  return gates_[static_cast<std::size_t>(kind)].num_arrived;
}

gpu::OperationVerdict Valve::pass(const gpu::OperationInfo& info) {
  MutexLock lock(mutex_);
  Gate& entered = gate(info.kind);
  const std::uint64_t number = ++entered.num_arrived;
  const bool fail = entered.fail_in != 0 && --entered.fail_in == 0;
  const bool lose = entered.lose_in != 0 && --entered.lose_in == 0;
  while (entered.held && entered.let_through == 0)
    opened_.wait_for(mutex_, std::chrono::seconds(1));
  if (entered.held) --entered.let_through;
  gpu::OperationVerdict verdict{.fail = fail};
  if (entered.most_delay.count() != 0) {
    verdict.delay = std::chrono::nanoseconds(mixed_bits(number) %
                                             std::chrono::nanoseconds(entered.most_delay).count());
  }
  if (lose) verdict.loses = entered.loses;
  return verdict;
}

}  // namespace kvferry::transfer
