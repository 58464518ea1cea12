// SPDX-License-Identifier: Apache-2.0
#include "loss_state.hpp"

#include "kvferry/base/error.hpp"

#include <utility>

namespace kvferry::gpu {

void LossState::lose(LostMemory memory, std::string why) {
  MutexLock lock(mutex_);
  if (!loss_) loss_ = DeviceLoss{memory, std::move(why), std::chrono::system_clock::now()};
  if (memory == LostMemory::kQuiet) loss_->memory = memory;
  state_.store(loss_->memory == LostMemory::kQuiet ? kLostQuiet : kLostInDoubt,
               std::memory_order_release);
}

std::optional<DeviceLoss> LossState::loss() const {
  if (!lost()) return std::nullopt;
  MutexLock lock(mutex_);
  return loss_;
}

std::string LossState::why() const {
  const auto loss = this->loss();
  if (!loss) return {};
  return "this process lost the device at " + utc_text(loss->since) + ": " + loss->why;
}

void LossState::throw_if_lost() const {
  if (lost()) throw DeviceError(why());
}

}  // namespace kvferry::gpu
