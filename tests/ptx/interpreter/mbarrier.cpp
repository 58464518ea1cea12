// SPDX-License-Identifier: Apache-2.0
#include "interpreter/mbarrier.hpp"

#include "interpreter/fault.hpp"

#include <cstdlib>
#include <string>

namespace kvferry::ptx {
namespace {

// PTX ISA: both counts of an mbarrier object.
constexpr std::int64_t kMaxCount = (1 << 20) - 1;

}  // namespace

MBarrier::MBarrier(std::uint32_t count) : count_(count), num_awaited_(count) {
  if (count == 0 || count > kMaxCount) {
    throw Fault(Hazard::kBarrier, "an mbarrier for " + std::to_string(count) + " arrivals");
  }
}

void MBarrier::expect(std::uint32_t bytes, const Knowledge& arriving) {
  if (num_awaited_ == 0) {
    throw Fault(Hazard::kBarrier, "an arrival in a phase that has all of its arrivals");
  }
  num_bytes_awaited_ += bytes;
  --num_awaited_;
  check_counts();
  arrived_.learn(arriving);
  end_phase_if_complete();
}

void MBarrier::begin_load(std::uint32_t bytes) {
  num_bytes_under_way_ += bytes;
  check_counts();
}

void MBarrier::complete(std::uint32_t bytes) {
  num_bytes_under_way_ -= bytes;
  num_bytes_awaited_ -= bytes;
  check_counts();
  end_phase_if_complete();
}

void MBarrier::check_counts() const {
  if (std::abs(num_bytes_awaited_) > kMaxCount) {
    throw Fault(Hazard::kBarrier, "more bytes than an mbarrier can count");
  }
  // No arrival is left that could expect more: the phase would end before its bytes have come.
  if (num_awaited_ == 0 && num_bytes_under_way_ > num_bytes_awaited_) {
    throw Fault(Hazard::kBarrier, "loads bring more bytes than the phase expects");
  }
}

void MBarrier::end_phase_if_complete() {
  if (num_awaited_ != 0 || num_bytes_awaited_ != 0) return;
  ++phase_;
  num_awaited_ = count_;
  released_.learn(arrived_);
}

}  // namespace kvferry::ptx
