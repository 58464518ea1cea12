// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/memory/arena.hpp"
#include "kvferry/gpu/host_link.hpp"
#include "kvferry/transfer/transfer_engine.hpp"

#include "borrowed_device.hpp"
#include "device_access.hpp"
#include "valve.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace kvferry::transfer {

using Bytes = std::vector<std::uint8_t>;

/// Long enough that only a hang reaches it.
inline constexpr std::chrono::nanoseconds kForever = std::chrono::minutes(2);

/// Waits until `condition` holds; a test failure if it never does.
void await(const std::function<bool()>& condition, const std::string& what);

/// Contents of a block: every byte depends on the version and on its offset in the packed block.
[[nodiscard]] std::uint8_t pattern(std::uint64_t version, std::uint64_t offset);
[[nodiscard]] Bytes pattern_bytes(std::uint64_t version, std::uint64_t num_bytes);

struct RigOptions {
  /// test_backend.hpp. The valve and the simulated link are the host back end's; on the others the
  /// link's failures are refused copies, and there is no valve.
  std::string backend = "host";
  gpu::HostLinkOptions link = {};
  /// One class per entry; the default has three (see rig.cpp).
  std::vector<std::vector<std::uint64_t>> fragment_bytes = {};
  std::uint32_t num_blocks = 64;
  std::uint32_t num_slots = 160;
  /// Of one registration of the arena; the default is the smallest there is: with 192-byte slots,
  /// one per 64 slots.
  std::uint64_t registration_bytes = 1;
  /// By class, whose slots then share chunks, of which there are num_slots; empty: all classes have
  /// the arena's own slots.
  std::vector<std::uint32_t> slots_per_chunk = {};
  TransferOptions transfer = {.staging_bytes = std::uint64_t{1} << 16};
  /// Whether the slots have tags, so that loads are checked.
  bool tags = false;
  /// Whether the compute stream is a thread, or runs each operation before the call returns.
  enum class Compute : std::uint8_t { kInline, kThread } compute = Compute::kInline;
  /// Null: a host device, whose operations the valve sees. Another's compute stream is its own.
  std::unique_ptr<gpu::Device> (*make_device)() = nullptr;
};

/// A device, an engine's pool of blocks, an arena and a TransferEngine between them.
class Rig {
 public:
  static constexpr std::uint64_t kSlotBytes = 192;
  // The default classes.
  static constexpr SlabClassId kStrided{0};  ///< 40 + 24 + 64 bytes with gaps.
  static constexpr SlabClassId kDense{1};    ///< One fragment as large as a slot, no gaps.
  static constexpr SlabClassId kOdd{2};      ///< 17 + 30 bytes with gaps, aligned to nothing.

  explicit Rig(const RigOptions& options = {});
  /// Opens the valve and closes the engine. Keeps the arena for a device lost with memory in doubt.
  ~Rig();
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  /// Contents, read and written by the calling thread: nothing may be under way on them.
  [[nodiscard]] Bytes block(SlabClassId slab_class, BlockId block) const;
  void write_block(SlabClassId slab_class, BlockId block, std::uint64_t version);
  [[nodiscard]] Bytes slot(SlabClassId slab_class, SlotId slot) const;
  void write_slot(SlabClassId slab_class, SlotId slot, std::uint64_t version);
  [[nodiscard]] std::uint8_t device_byte(std::uintptr_t address) const;
  /// Fills a block with one value in the order of the compute stream.
  void fill_on_compute(SlabClassId slab_class, BlockId block, std::uint8_t value);

  [[nodiscard]] std::uint64_t packed_bytes(SlabClassId slab_class) const {
    return geometries[slab_class.value()].packed_bytes;
  }

  /// gather() and seal() in one; the number gathered.
  std::uint32_t store(std::uint64_t transfer, SlabClassId slab_class,
                      const std::vector<BlockSlot>& blocks);
  /// fence() and load() in one.
  void load(std::uint64_t transfer, SlabClassId slab_class, const std::vector<BlockSlot>& blocks);
  /// Waits until all is idle and polls.
  [[nodiscard]] std::vector<Completion> finish();
  /// finish(), when there is exactly one end.
  [[nodiscard]] Completion finish_one();

  /// Also the device's: of a lost one, operations may pass when the rig is gone.
  std::shared_ptr<Valve> shared_valve = std::make_shared<Valve>();
  Valve& valve = *shared_valve;
  std::unique_ptr<gpu::Device> device;
  /// What the engine gets.
  std::unique_ptr<BorrowedDevice> lent;
  std::vector<std::unique_ptr<gpu::DeviceBuffer>> pools;
  std::vector<gpu::BlockGeometry> geometries;
  std::unique_ptr<cpu_tier::Arena> arena;
  std::vector<BlockClass> classes;
  std::unique_ptr<gpu::Stream> compute;
  std::unique_ptr<TransferEngine> engine;
  /// For a test whose engine ended with copies under way: device and memory are kept for them.
  bool is_left_behind = false;

 private:
  std::unique_ptr<gpu::DeviceAccess> access_;
};

/// `count` blocks from `first_block` on into slots from `first_slot` on.
[[nodiscard]] std::vector<BlockSlot> blocks_to_slots(std::uint32_t first_block,
                                                     std::uint32_t first_slot, std::uint32_t count);

/// Hooks are global: each test starts and ends without any.
class TransferTest : public ::testing::Test {
 protected:
  TransferTest();
  ~TransferTest() override;
};
class StoreTest : public TransferTest {};
class LoadTest : public TransferTest {};

}  // namespace kvferry::transfer
