// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/gpu/device.hpp"

#include "measure/host_memory.hpp"
#include "measure/verifier.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace kvferry::bench {

/// Device memory that can be filled with a pattern and checked. It uses large single copies through
/// its own pinned memory, which are not under test.
class DeviceMemory {
 public:
  /// Throws ResourceError or DeviceError.
  DeviceMemory(gpu::Device& device, std::uint64_t bytes);

  [[nodiscard]] std::uintptr_t address() const { return buffer_->address(); }
  [[nodiscard]] std::uint64_t size_bytes() const { return bytes_; }

  /// Fills [begin, begin + bytes) with those bytes of the pattern. Throws DeviceError.
  void write(std::uint64_t begin, std::uint64_t bytes, PatternKey key);
  /// Checks the pieces of `piece_bytes` at `begin` + place * piece_bytes, for each of `places`,
  /// which are ascending. Also reads the memory between them. Throws DeviceError.
  void check_pieces(std::uint64_t begin, std::uint64_t piece_bytes, std::span<const BlockId> places,
                    PatternKey key, Verifier& verifier, std::string_view what);
  /// Returns the contents of [begin, begin + bytes), at most kWindowBytes; valid until the next
  /// call. Throws DeviceError.
  [[nodiscard]] std::span<std::byte> read(std::uint64_t begin, std::uint64_t bytes);

  static constexpr std::uint64_t kWindowBytes = std::uint64_t{32} << 20U;

 private:
  void copy(gpu::CopyDirection direction, std::uint64_t begin, std::uint64_t bytes);

  std::uint64_t bytes_;
  std::unique_ptr<gpu::DeviceBuffer> buffer_;
  HostMemory window_;
  std::unique_ptr<gpu::Stream> stream_;
  std::unique_ptr<gpu::Event> ended_;
};

}  // namespace kvferry::bench
