// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "interpreter/global_memory.hpp"
#include "interpreter/lane.hpp"
#include "interpreter/mbarrier.hpp"
#include "interpreter/shared_memory.hpp"

#include <cstdint>
#include <map>
#include <random>
#include <vector>

namespace kvferry::ptx {

using Random = std::mt19937_64;

/// The unit that moves the bytes of bulk copies, late, in parts and in an order of chance.
class CopyUnit {
 public:
  /// All outlive the unit.
  CopyUnit(GlobalMemory& global, SharedMemory& shared, std::map<std::uint32_t, MBarrier>& barriers,
           std::vector<Lane>& lanes)
      : global_(global), shared_(shared), barriers_(barriers), lanes_(lanes) {}

  void load(std::uint64_t from, std::uint32_t to, std::uint32_t bytes,
            const SharedMemory::Arrival& arrival);
  void store(std::uint32_t from, std::uint64_t to, std::uint32_t bytes,
             const SharedMemory::Reader& reader);

  [[nodiscard]] bool is_idle() const { return copies_.empty(); }
  /// Does a part of one of its copies. It is not idle. Throws Fault.
  void advance(Random& random);

 private:
  struct Copy {
    bool is_load;
    std::uint64_t global;
    std::uint32_t shared;
    std::uint32_t num_bytes_left;
    SharedMemory::Arrival arrival;   ///< Of a load.
    SharedMemory::Reader reader;     ///< Of a store.
    std::vector<std::uint8_t> held;  ///< Of a store that has read: what it will write.
  };

  /// Both return whether the copy is done.
  bool advance_load(Copy& copy, Random& random);
  bool advance_store(Copy& copy);

  GlobalMemory& global_;
  SharedMemory& shared_;
  std::map<std::uint32_t, MBarrier>& barriers_;
  std::vector<Lane>& lanes_;
  std::vector<Copy> copies_;
};

}  // namespace kvferry::ptx
