// SPDX-License-Identifier: Apache-2.0
#include "rig.hpp"

#include "kvferry/base/graveyard.hpp"
#include "kvferry/base/test_hooks.hpp"

#include "failing_device.hpp"
#include "test_backend.hpp"

#include <cstring>
#include <span>
#include <thread>
#include <utility>

namespace kvferry::transfer {
namespace {

std::uint8_t* at(std::uintptr_t address) { return reinterpret_cast<std::uint8_t*>(address); }

const std::vector<std::vector<std::uint64_t>> kDefaultClasses = {{40, 24, 64}, {192}, {17, 30}};

}  // namespace

void await(const std::function<bool()>& condition, const std::string& what) {
  const auto start = std::chrono::steady_clock::now();
  while (!condition()) {
    ASSERT_LT(std::chrono::steady_clock::now() - start, kForever) << what;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

std::uint8_t pattern(std::uint64_t version, std::uint64_t offset) {
  const std::uint64_t mixed = (version * 0x9e3779b97f4a7c15U + offset + 1) * 0xbf58476d1ce4e5b9U;
  return static_cast<std::uint8_t>(mixed >> 56);
}

Bytes pattern_bytes(std::uint64_t version, std::uint64_t num_bytes) {
  Bytes bytes(num_bytes);
  for (std::uint64_t i = 0; i < num_bytes; ++i) bytes[i] = pattern(version, i);
  return bytes;
}

Rig::Rig(const RigOptions& options) {
  if (options.make_device != nullptr) {
    device = options.make_device();
    lent = std::make_unique<BorrowedDevice>(*device);
  } else if (options.backend == "host") {
    device = gpu::make_host_device(
        options.link,
        [held = shared_valve](const gpu::OperationInfo& info) { return held->pass(info); });
    lent = std::make_unique<BorrowedDevice>(*device);
  } else {
    device = gpu::make_test_device(options.backend);
    lent =
        std::make_unique<FailingDevice>(*device, options.link.fail_probability, options.link.seed);
  }
  access_ = std::make_unique<gpu::DeviceAccess>(*device, device->create_stream());
  const auto& sizes = options.fragment_bytes.empty() ? kDefaultClasses : options.fragment_bytes;
  std::uint64_t slot_bytes = kSlotBytes;
  std::uint32_t most_slots = 1;
  for (const auto& slab_class : sizes) {
    std::vector<gpu::Fragment> fragments;
    std::uint64_t packed_bytes = 0;
    for (const std::uint64_t bytes : slab_class) {
      // Different gaps, so that a mixed-up stride shows; none around a lone fragment.
      const std::uint64_t stride = slab_class.size() == 1 ? bytes : bytes + 3 + fragments.size();
      pools.push_back(device->allocate(stride * options.num_blocks));
      access_->fill(pools.back()->address(), 0xee, pools.back()->size_bytes());
      fragments.push_back(
          {.base = pools.back()->address(), .block_stride_bytes = stride, .bytes = bytes});
      packed_bytes += bytes;
    }
    const std::size_t number = geometries.size();
    const std::uint64_t count =
        options.slots_per_chunk.empty() ? 1 : options.slots_per_chunk[number];
    most_slots = std::max(most_slots, static_cast<std::uint32_t>(count));
    slot_bytes = std::max(slot_bytes, count * packed_bytes);
    geometries.push_back(gpu::make_block_geometry(std::move(fragments), options.num_blocks));
  }
  arena = std::make_unique<cpu_tier::Arena>(
      *device, slot_bytes, options.num_slots,
      cpu_tier::ArenaOptions{.pinned_piece_bytes = options.registration_bytes,
                             .max_registration_bytes = options.registration_bytes,
                             .tags_per_chunk = options.tags ? most_slots : 0});
  const bool own_stream =
      options.make_device != nullptr || options.compute == RigOptions::Compute::kThread;
  compute = own_stream ? device->create_stream() : device->view_stream(0);
  access_->wait();
  for (std::size_t i = 0; i < geometries.size(); ++i) {
    const bool own = options.slots_per_chunk.empty();
    classes.push_back(
        {geometries[i],
         cpu_tier::ArenaSlots(*arena, own ? 1 : options.slots_per_chunk[i],
                              own ? arena->chunk_bytes() : geometries[i].packed_bytes)});
  }
  engine = std::make_unique<TransferEngine>(*lent, classes, options.transfer);
}

Rig::~Rig() {
  valve.open_all();
  engine.reset();
  const auto loss = device->lost();
  if (is_left_behind || (loss && loss->memory == gpu::LostMemory::kInDoubt)) {
    bury(std::move(arena));
  }
  if (!is_left_behind) return;
  for (auto& pool : pools) bury(std::move(pool));
  bury(std::move(lent));
  bury(std::move(device));
}

Bytes Rig::block(SlabClassId slab_class, BlockId block) const {
  const gpu::BlockGeometry& geometry = geometries[slab_class.value()];
  Bytes bytes(geometry.packed_bytes);
  for (std::size_t f = 0; f < geometry.fragments.size(); ++f) {
    access_->read(
        geometry.fragment_address(f, block),
        std::span(bytes).subspan(geometry.packed_offsets[f], geometry.fragments[f].bytes));
  }
  return bytes;
}

void Rig::write_block(SlabClassId slab_class, BlockId block, std::uint64_t version) {
  const gpu::BlockGeometry& geometry = geometries[slab_class.value()];
  const Bytes bytes = pattern_bytes(version, geometry.packed_bytes);
  for (std::size_t f = 0; f < geometry.fragments.size(); ++f) {
    access_->write(
        geometry.fragment_address(f, block),
        std::span(bytes).subspan(geometry.packed_offsets[f], geometry.fragments[f].bytes));
  }
  access_->wait();
}

std::uint8_t Rig::device_byte(std::uintptr_t address) const {
  std::uint8_t byte = 0;
  access_->read(address, {&byte, 1});
  return byte;
}

Bytes Rig::slot(SlabClassId slab_class, SlotId slot) const {
  const std::uint8_t* begin = at(classes[slab_class.value()].slots.address(slot));
  return {begin, begin + packed_bytes(slab_class)};
}

void Rig::write_slot(SlabClassId slab_class, SlotId slot, std::uint64_t version) {
  const Bytes bytes = pattern_bytes(version, packed_bytes(slab_class));
  const cpu_tier::ArenaSlots& slots = classes[slab_class.value()].slots;
  std::memcpy(at(slots.address(slot)), bytes.data(), bytes.size());
  if (slots.has_tags()) slots.tag(slot).store(0);  // Of the bytes before.
}

void Rig::fill_on_compute(SlabClassId slab_class, BlockId block, std::uint8_t value) {
  const gpu::BlockGeometry& geometry = geometries[slab_class.value()];
  for (std::size_t f = 0; f < geometry.fragments.size(); ++f) {
    compute->fill(geometry.fragment_address(f, block), value, geometry.fragments[f].bytes);
  }
}

std::uint32_t Rig::store(std::uint64_t transfer, SlabClassId slab_class,
                         const std::vector<BlockSlot>& blocks) {
  const TransferId id(transfer);
  const std::uint32_t num_gathered = engine->gather(*compute, id, slab_class, blocks);
  EXPECT_EQ(engine->seal(id), num_gathered != 0);
  return num_gathered;
}

void Rig::load(std::uint64_t transfer, SlabClassId slab_class,
               const std::vector<BlockSlot>& blocks) {
  engine->load(TransferId(transfer), slab_class, blocks, engine->fence(*compute));
}

std::vector<Completion> Rig::finish() {
  EXPECT_TRUE(engine->wait_idle(kForever));
  return engine->poll();
}

Completion Rig::finish_one() {
  const std::vector<Completion> ends = finish();
  EXPECT_EQ(ends.size(), 1U);
  return ends.size() == 1 ? ends.front() : Completion{};
}

std::vector<BlockSlot> blocks_to_slots(std::uint32_t first_block, std::uint32_t first_slot,
                                       std::uint32_t count) {
  std::vector<BlockSlot> blocks;
  for (std::uint32_t i = 0; i < count; ++i) {
    blocks.push_back({.block = BlockId(first_block + i), .slot = SlotId(first_slot + i)});
  }
  return blocks;
}

TransferTest::TransferTest() {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
#ifdef KVFERRY_TEST_HOOKS
  test_hooks::reset();
#endif
}

TransferTest::~TransferTest() {
#ifdef KVFERRY_TEST_HOOKS
  test_hooks::reset();
#endif
}

}  // namespace kvferry::transfer
