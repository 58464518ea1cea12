// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"

#include "host/host_event.hpp"

#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

namespace kvferry::gpu {

// The operations of a host stream, each owning what it needs.

struct CopyOperation {
  CopyDirection direction = CopyDirection::kDeviceToHost;
  std::vector<CopyRun> runs;
  std::uint64_t bytes = 0;
  /// Counted from 1 over the device, in order of submission.
  std::uint64_t number = 0;
};

enum class PackWay : std::uint8_t { kGather, kScatter };

struct PackOperation {
  PackWay way = PackWay::kGather;
  BlockGeometry geometry;
  std::vector<BlockId> blocks;
  std::uintptr_t packed = 0;
};

struct FillOperation {
  std::uintptr_t address = 0;
  std::uint8_t value = 0;
  std::uint64_t bytes = 0;
};

struct RecordOperation {
  std::shared_ptr<HostRecord> record;
};

struct WaitOperation {
  std::shared_ptr<const HostRecord> record;
};

using HostOperation =
    std::variant<CopyOperation, PackOperation, FillOperation, RecordOperation, WaitOperation>;

}  // namespace kvferry::gpu
