// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/block_geometry.hpp"

#include "measure/copy_route.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace kvferry::bench {

/// Packs fragments in device memory, and copies the packed memory over the link in large pieces.
/// One stream packs or unpacks, the other copies, and each piece has its own part of the packed
/// memory.
class StagedRoute final : public CopyRoute {
 public:
  /// Pieces are at most `piece_bytes`, and at least one fragment. Throws ResourceError or
  /// DeviceError.
  StagedRoute(gpu::Device& device, const FragmentSets& sets, const RouteEnds& ends,
              std::uint64_t piece_bytes);
  void submit(std::uint32_t set) override;
  [[nodiscard]] gpu::Stream& first() override;
  [[nodiscard]] gpu::Stream& last() override;
  [[nodiscard]] std::uint64_t descriptors_per_set() const override { return sets_.count; }

 private:
  void store(std::uint32_t piece, std::uint64_t first, std::uint64_t count);
  void load(std::uint32_t piece, std::uint64_t first, std::uint64_t count);
  void copy(std::uint64_t first, std::uint64_t count);
  [[nodiscard]] bool stores() const { return ends_.direction == gpu::CopyDirection::kDeviceToHost; }

  const RouteEnds ends_;
  const FragmentSets& sets_;
  const gpu::BlockGeometry geometry_;
  const std::uint64_t fragments_per_piece_;
  const std::uint32_t pieces_per_set_;
  /// Packed memory for all sets, so that no piece waits for room.
  std::unique_ptr<gpu::DeviceBuffer> packed_;
  /// Events between the two streams, one for each piece of each set.
  std::vector<std::unique_ptr<gpu::Event>> handed_over_;
  std::unique_ptr<gpu::Stream> pack_stream_;
  std::unique_ptr<gpu::Stream> copy_stream_;
};

}  // namespace kvferry::bench
