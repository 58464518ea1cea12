// SPDX-License-Identifier: Apache-2.0
#include "gcn/wave.hpp"
#include "interpreter/fault.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kvferry::gcn {
namespace {

constexpr std::size_t kRegisterBytes = 4;

void check_alignment(std::uint64_t address, std::size_t bytes) {
  if (address % bytes == 0) return;
  throw ptx::Fault(ptx::Hazard::kAlignment,
                   "an access of " + std::to_string(bytes) + " bytes is not aligned to them");
}

}  // namespace

void Wave::load(const Instruction& one) {
  const std::size_t bytes = one.opcode->bytes;
  Load load{one.operands[0], mask(kExec), {}};
  for (std::uint32_t lane = 0; lane < kNumLanes; ++lane) {
    std::vector<std::uint32_t> values(one.opcode->result_size);
    if (is_active(lane)) {
      const std::uint64_t from =
          lane_value(one.operands[1], 2, lane) + static_cast<std::uint64_t>(one.offset);
      check_alignment(from, bytes);
      std::memcpy(values.data(), memory_.read(from, bytes).data(), bytes);
    }
    load.values.insert(load.values.end(), values.begin(), values.end());
  }
  vector_loads_.push_back(std::move(load));
}

void Wave::store(const Instruction& one) {
  const std::size_t bytes = one.opcode->bytes;
  for (std::uint32_t lane = 0; lane < kNumLanes; ++lane) {
    if (!is_active(lane)) continue;
    const std::uint64_t to =
        lane_value(one.operands[0], 2, lane) + static_cast<std::uint64_t>(one.offset);
    check_alignment(to, bytes);
    std::array<std::uint8_t, 16> stored{};
    for (std::size_t i = 0; i * kRegisterBytes < bytes; ++i) {
      const std::uint32_t value = vectors_[one.operands[1].reg + i][lane];
      std::memcpy(stored.data() + i * kRegisterBytes, &value, kRegisterBytes);
    }
    memory_.write(to, std::span(stored).first(bytes));
  }
  vector_loads_.push_back({});
}

void Wave::add(const Instruction& one) {
  for (std::uint32_t lane = 0; lane < kNumLanes; ++lane) {
    if (!is_active(lane)) continue;
    const std::uint64_t to =
        lane_value(one.operands[0], 2, lane) + static_cast<std::uint64_t>(one.offset);
    check_alignment(to, one.opcode->bytes);
    memory_.add(to, lane_value(one.operands[1], 2, lane));
  }
  vector_loads_.push_back({});
}

/// Byte addresses of registers of 4 bytes; what is beyond the wave wraps.
void Wave::permute(const Instruction& one) {
  Load load{one.operands[0], mask(kExec), {}};
  for (std::uint32_t lane = 0; lane < kNumLanes; ++lane) {
    std::uint32_t given = 0;
    if (is_active(lane)) {
      const std::uint64_t address =
          lane_value(one.operands[1], 1, lane) + static_cast<std::uint64_t>(one.offset);
      const auto from = static_cast<std::uint32_t>(address / kRegisterBytes % kNumLanes);
      if (!is_active(from)) {
        throw ptx::Fault(ptx::Hazard::kUndefined, "a lane is to give a value that is not active");
      }
      given = static_cast<std::uint32_t>(lane_value(one.operands[2], 1, from));
    }
    load.values.push_back(given);
  }
  scalar_loads_.push_back(std::move(load));
}

void Wave::load_scalars(const Instruction& one) {
  const std::size_t bytes = one.opcode->bytes;
  const std::uint64_t from = scalar(one.operands[1], 2) + scalar(one.operands[2], 1);
  check_alignment(from, kRegisterBytes);
  Load load{one.operands[0], 1, std::vector<std::uint32_t>(bytes / kRegisterBytes)};
  std::memcpy(load.values.data(), memory_.read(from, bytes).data(), bytes);
  scalar_loads_.push_back(std::move(load));
}

void Wave::wait(const Instruction& one) {
  while (vector_loads_.size() > one.max_vector_left) {
    arrive(vector_loads_.front());
    vector_loads_.pop_front();
  }
  // Values of other lanes come in order. Scalar loads do not: as long as one is under way, only to
  // wait for all says anything.
  const bool in_order =
      std::all_of(scalar_loads_.begin(), scalar_loads_.end(),
                  [](const Load& load) { return load.to.kind == Operand::kVector; });
  while (in_order && scalar_loads_.size() > one.max_scalar_left) {
    arrive(scalar_loads_.front());
    scalar_loads_.pop_front();
  }
  if (one.max_scalar_left != 0) return;
  for (const Load& load : scalar_loads_) arrive(load);
  scalar_loads_.clear();
}

void Wave::arrive(const Load& load) {
  if (load.to.kind == Operand::kScalar) {
    for (std::size_t i = 0; i < load.values.size(); ++i) scalars_[load.to.reg + i] = load.values[i];
    return;
  }
  const std::size_t size = load.to.num_registers;
  for (std::uint32_t lane = 0; lane < kNumLanes; ++lane) {
    if ((load.lanes >> lane & 1U) == 0) continue;
    for (std::size_t i = 0; i < size; ++i) {
      vectors_[load.to.reg + i][lane] = load.values[lane * size + i];
    }
  }
}

}  // namespace kvferry::gcn
