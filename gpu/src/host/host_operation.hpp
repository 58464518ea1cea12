// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"

#include "host/host_event.hpp"
#include "kernels/pack_way.hpp"

#include <cstdint>
#include <functional>
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

struct PackOperation {
  PackWay way = PackWay::kGather;
  BlockGeometry geometry;
  std::vector<BlockId> blocks;
  std::uintptr_t packed = 0;
  /// 0: none are made.
  std::uintptr_t sums = 0;
};

struct FillOperation {
  std::uintptr_t address = 0;
  std::uint8_t value = 0;
  std::uint64_t bytes = 0;
};

/// Work of the device that is none of the above: co_run_launcher.hpp, pageable_copy.hpp.
struct CallOperation {
  std::function<void()> call;
};

struct RecordOperation {
  std::shared_ptr<HostRecord> record;
};

struct WaitOperation {
  std::shared_ptr<const HostRecord> record;
};

using HostOperation = std::variant<CopyOperation, PackOperation, FillOperation, CallOperation,
                                   RecordOperation, WaitOperation>;

}  // namespace kvferry::gpu
