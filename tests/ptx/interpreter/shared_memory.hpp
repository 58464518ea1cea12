// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "interpreter/knowledge.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvferry::ptx {

/// Dynamic shared memory of a block, and who may touch which bytes of it: a lane that issues a copy
/// must know of the copies before it, and luck does not count. Kept for granules of 16 bytes, the
/// unit of bulk copies.
class SharedMemory {
 public:
  static constexpr std::uint32_t kGranuleBytes = 16;

  explicit SharedMemory(std::uint32_t bytes);

  /// A phase of an mbarrier whose end says that bytes have arrived.
  struct Arrival {
    std::uint32_t barrier = 0;
    std::uint64_t phase = 0;
  };
  /// A bulk group of a lane whose end says that bytes were read.
  struct Reader {
    std::uint32_t lane = 0;
    std::uint32_t group = 0;
  };

  /// Makes room for an mbarrier. Throws Fault (kBounds, kAlignment).
  void place_barrier(std::uint32_t address);
  /// A lane issues a bulk load to here. Throws Fault: kBounds; kWriteBeforeRead if the lane does
  /// not know that what was here before has arrived and been read; kBarrier if an mbarrier is here.
  void begin_load(std::uint32_t address, std::uint32_t bytes, const Arrival& arrival,
                  const Knowledge& known);
  /// A lane issues a bulk store from here. Throws Fault: kBounds; kReadBeforeWrite if the lane does
  /// not know that the bytes have arrived.
  void begin_store(std::uint32_t address, std::uint32_t bytes, const Reader& reader,
                   const Knowledge& known);

  /// The bytes themselves, for the copy unit.
  [[nodiscard]] std::span<std::uint8_t> bytes(std::uint32_t address, std::size_t bytes);

 private:
  enum class Content : std::uint8_t { kNothing, kBarrier, kLoad };
  struct Granule {
    Content content = Content::kNothing;
    Arrival arrival;
    std::vector<Reader> readers;
  };

  void check_bounds(std::uint32_t address, std::uint32_t bytes) const;
  std::span<Granule> granules(std::uint32_t address, std::uint32_t bytes);

  std::vector<std::uint8_t> bytes_;
  std::vector<Granule> granules_;
};

}  // namespace kvferry::ptx
