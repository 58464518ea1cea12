// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/copy_path.hpp"
#include "kvferry/gpu/device.hpp"

#include "measure/copy_route.hpp"
#include "measure/device_memory.hpp"
#include "measure/fragment_set.hpp"
#include "measure/host_copy_route.hpp"
#include "measure/host_memory.hpp"
#include "measure/verifier.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace kvferry::bench {

/// One way to copy.
struct CopyWay {
  gpu::CopyPath path = gpu::CopyPath::kPerRun;
  /// Copies by the processor instead of by `path`; only with the host back end's device.
  std::optional<HostCopy> host_copy = std::nullopt;
};

/// What the rows of one direction copy, and how.
struct LaneOptions {
  gpu::CopyDirection direction = gpu::CopyDirection::kDeviceToHost;
  HostMemoryKind host_memory = HostMemoryKind::kPinned;
  /// The NUMA node of the host memory; unset: where the kernel chooses.
  std::optional<std::uint32_t> numa_node = std::nullopt;
  /// kStaged packs this many bytes, copies them, and packs the next ones meanwhile, like the
  /// transfer component.
  std::uint64_t staged_piece_bytes = std::uint64_t{8} << 20U;
  /// One for each row. Pageable memory always has the same path.
  std::vector<CopyWay> ways = {{}};
};

/// One direction: its memory on both sides, a route between them for each way, and the check of the
/// bytes that arrived.
class Lane {
 public:
  /// Throws ResourceError or DeviceError.
  Lane(gpu::Device& device, FragmentSets sets, const LaneOptions& options);

  /// Fills the source with a round's pattern. Throws DeviceError.
  void prepare(PatternKey key);
  /// Checks the destination: every fragment of every set. Throws DeviceError.
  void check(PatternKey key, Verifier& verifier);

  [[nodiscard]] CopyRoute& route(std::size_t way) { return *routes_[way]; }
  [[nodiscard]] const FragmentSets& sets() const { return sets_; }
  [[nodiscard]] gpu::CopyDirection direction() const { return options_.direction; }

 private:
  /// The fragments in host memory.
  [[nodiscard]] PatternPieces host_pieces() const;
  void check_pool(PatternKey key, Verifier& verifier);
  void check_host(PatternKey key, Verifier& verifier);

  const LaneOptions options_;
  const FragmentSets sets_;
  DeviceMemory pool_;
  HostMemory host_;
  std::vector<std::unique_ptr<CopyRoute>> routes_;
};

}  // namespace kvferry::bench
