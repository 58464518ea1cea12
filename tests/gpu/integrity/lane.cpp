// SPDX-License-Identifier: Apache-2.0
#include "lane.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <optional>
#include <thread>
#include <utility>

namespace kvferry::integrity {
namespace {

/// Longer than anything may take.
constexpr std::chrono::seconds kHang{120};
constexpr std::size_t kMaxActive = 24;
constexpr std::uint64_t kNoiseBytes = std::uint64_t{8} << 20U;

std::string hex(std::uint8_t byte) {
  char text[8];
  std::snprintf(text, sizeof(text), "0x%02x", byte);
  return text;
}

transfer::TransferOptions random_options(std::mt19937_64& random, const LaneOptions& options) {
  transfer::TransferOptions chosen;
  // From a ring of a few blocks, which is full most of the time, to one of a whole step.
  chosen.staging_bytes =
      std::max(2 * options.max_block_bytes, options.pool_bytes >> (1 + random() % 4));
  chosen.piece_bytes = options.max_block_bytes << (random() % 3);
  chosen.max_in_flight_bytes = 4 * chosen.piece_bytes;
  // Each way across the link, and the choice among them.
  constexpr std::optional<gpu::CopyPath> kPaths[] = {std::nullopt, gpu::CopyPath::kPerRun,
                                                     gpu::CopyPath::kBatch, gpu::CopyPath::kKernel,
                                                     gpu::CopyPath::kStaged};
  chosen.copy_path = kPaths[(options.seed + options.number) % std::size(kPaths)];
  return chosen;
}

}  // namespace

Lane::Lane(gpu::Device& device, const LaneOptions& options)
    : options_(options), random_(options.seed) {
  const std::vector<Shape> chosen = shapes(options.max_block_bytes);
  std::uint64_t slot_bytes = 0;
  std::vector<gpu::BlockGeometry> geometries;
  for (const Shape& shape : chosen) {
    const std::uint64_t share = options.pool_bytes / chosen.size();
    const std::uint64_t num_blocks =
        std::clamp(share / shape.packed_bytes(), std::uint64_t{6}, std::uint64_t{512});
    Group group;
    group.pool = std::make_unique<BlockPool>(device, shape, static_cast<std::uint32_t>(num_blocks));
    group.blocks.resize(num_blocks);
    geometries.push_back(group.pool->geometry());
    slot_bytes = std::max(slot_bytes, shape.packed_bytes());
    groups_.push_back(std::move(group));
  }
  // Odd, so that slots lie at all alignments.
  slot_bytes += 16 * below(3);
  const std::uint64_t num_slots =
      std::clamp(options.pool_bytes / slot_bytes, std::uint64_t{24}, std::uint64_t{4096});
  slots_.resize(num_slots);
  arena_ = std::make_unique<cpu_tier::Arena>(
      device, slot_bytes, static_cast<std::uint32_t>(num_slots),
      cpu_tier::ArenaOptions{.pinned_piece_bytes = options.pool_bytes / (1 + below(8)),
                             .max_registration_bytes = 1});
  noise_memory_ = device.allocate(kNoiseBytes);
  for (WriteBuffer& buffer : write_buffers_) {
    buffer.memory = std::make_unique<gpu::PinnedMemory>(device, options.max_block_bytes);
    buffer.copied = device.create_event();
  }
  read_buffer_ = std::make_unique<gpu::PinnedMemory>(device, 2 * options.max_block_bytes);
  compute_ = device.create_stream();
  noise_ = device.create_stream();
  reads_ = device.create_stream();
  noise_made_ = device.create_event();
  engine_ = std::make_unique<transfer::TransferEngine>(device, std::move(geometries), *arena_,
                                                       random_options(random_, options));
}

// The engine waits for its transfers, each stream for its work.
Lane::~Lane() { engine_.reset(); }

void Lane::step() {
  ++counts_.cycles;
  for (Group& group : groups_) group.reused.clear();
  make_noise();
  for (Group& group : groups_) {
    const BlockId block = random_block(group);
    if (!group.blocks[block.value()].loading) write(group, block);
  }
  const std::uint64_t num_stores = 1 + below(3);
  for (std::uint64_t i = 0; i < num_stores; ++i) store();
  const std::uint64_t num_loads = 1 + below(3);
  for (std::uint64_t i = 0; i < num_loads; ++i) load();
  if (one_in(30)) cancel_one();
  poll();
  const auto start = std::chrono::steady_clock::now();
  while (active_.size() >= kMaxActive) {
    if (std::chrono::steady_clock::now() - start > kHang) {
      fail(std::to_string(active_.size()) + " transfers do not end");
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    poll();
  }
}

// ---- what an engine does on its compute stream ----

void Lane::write(Group& group, BlockId block) {
  WriteBuffer& buffer = write_buffers_[next_buffer_++ % write_buffers_.size()];
  if (buffer.copied->wait(kHang) == gpu::EventState::kPending) fail("a write does not end");
  const std::uint64_t bytes = group.pool->packed_bytes();
  const Content content = {Content::Kind::kPattern, options_.number * 1'000'000'007U + next_key_++,
                           1 + below(1000)};
  content.write(buffer.memory->bytes().first(bytes));
  group.pool->copy(*compute_, gpu::CopyDirection::kHostToDevice, block,
                   buffer.memory->device_address());
  compute_->record(*buffer.copied);
  group.blocks[block.value()].content = content;
}

void Lane::reuse(Group& group, BlockId block) {
  switch (below(4)) {
    case 0:
      break;
    case 1:
      write(group, block);
      break;
    default: {
      const auto value = static_cast<std::uint8_t>(one_in(2) ? 0 : below(256));
      group.pool->fill(*compute_, block, value);
      group.blocks[block.value()].content = {Content::Kind::kValue, value, 0};
    }
  }
  group.reused.push_back(block);
}

// Beside everything else: fills that nobody orders, as another stream of the engine's makes them.
void Lane::make_noise() {
  if (noise_made_->query() == gpu::EventState::kPending) return;
  const std::uint64_t bytes = 1 + below(kNoiseBytes);
  noise_->fill(noise_memory_->address() + below(kNoiseBytes - bytes + 1),
               static_cast<std::uint8_t>(below(256)), bytes);
  noise_->record(*noise_made_);
}

// ---- transfers ----

std::vector<SlotId> Lane::free_slots(std::size_t count) {
  std::vector<SlotId> found;
  const std::uint64_t start = below(slots_.size());
  for (const SlotState state : {SlotState::kFree, SlotState::kReadable}) {
    for (std::uint64_t i = 0; i < slots_.size() && found.size() < count; ++i) {
      const auto at = static_cast<std::uint32_t>((start + i) % slots_.size());
      if (slots_[at].state == state && slots_[at].num_readers == 0) found.emplace_back(at);
    }
  }
  return found;
}

void Lane::store() {
  const std::size_t number = below(groups_.size());
  Group& group = groups_[number];
  Transfer planned{transfer::TransferKind::kStore, number, {}, {}};
  std::vector<SlotId> room = free_slots(1 + below(24));
  std::vector<bool> taken(group.blocks.size());
  for (const SlotId slot : room) {
    const BlockId block = random_block(group);
    const Block& source = group.blocks[block.value()];
    if (taken[block.value()] || source.loading || !source.content.known()) continue;
    taken[block.value()] = true;
    planned.blocks.push_back({block, slot});
    planned.contents.push_back(source.content);
  }
  if (planned.blocks.empty()) return;
  const TransferId id(next_transfer_++);
  const std::uint32_t num_gathered = engine_->gather(
      *compute_, id, SlabClassId(static_cast<std::uint16_t>(number)), planned.blocks);
  planned.blocks.resize(num_gathered);
  planned.contents.resize(num_gathered);
  for (std::size_t i = 0; i < num_gathered; ++i) {
    slots_[planned.blocks[i].slot.value()] = {SlotState::kFilling, number, planned.contents[i], 0};
    reuse(group, planned.blocks[i].block);
  }
  if (engine_->seal(id)) active_.emplace(id.value(), std::move(planned));
}

void Lane::load() {
  const std::size_t number = below(groups_.size());
  Group& group = groups_[number];
  Transfer planned{transfer::TransferKind::kLoad, number, {}, {}};
  const std::uint64_t count = 1 + below(24);
  const std::uint64_t start = below(slots_.size());
  for (std::uint64_t i = 0; i < slots_.size() && planned.blocks.size() < count; ++i) {
    const auto at = static_cast<std::uint32_t>((start + i) % slots_.size());
    Slot& slot = slots_[at];
    if (slot.state != SlotState::kReadable || slot.group != number) continue;
    BlockId block = random_block(group);
    if (!group.reused.empty()) {
      block = group.reused.back();
      group.reused.pop_back();
    }
    if (group.blocks[block.value()].loading) continue;
    group.blocks[block.value()].loading = true;
    ++slot.num_readers;
    planned.blocks.push_back({block, SlotId(at)});
    planned.contents.push_back(slot.content);
  }
  if (planned.blocks.empty()) return;
  transfer::Fence fence;
  if (options_.sabotage == Sabotage::kFence) {
    // Nothing is in the load's way, and what its fence should have been behind comes late.
    if (!engine_->wait_idle(kHang)) fail("transfers do not end");
    fence = engine_->fence(*compute_);
    for (int i = 0; i < 200; ++i) compute_->fill(noise_memory_->address(), 0, kNoiseBytes);
    for (const BlockSlot& pair : planned.blocks) group.pool->fill(*compute_, pair.block, 0);
  } else {
    fence = engine_->fence(*compute_);
  }
  const TransferId id(next_transfer_++);
  engine_->load(id, SlabClassId(static_cast<std::uint16_t>(number)), planned.blocks,
                std::move(fence));
  active_.emplace(id.value(), std::move(planned));
}

void Lane::cancel_one() {
  if (active_.empty()) return;
  auto chosen = active_.begin();
  std::advance(chosen, below(active_.size()));
  engine_->cancel(TransferId(chosen->first));
}

// ---- ends ----

void Lane::poll() {
  for (const transfer::Completion& end : engine_->poll()) {
    const auto found = active_.find(end.transfer.value());
    if (found == active_.end()) {
      fail("transfer " + std::to_string(end.transfer.value()) + " ended twice, or never began");
    }
    const Transfer ended = std::move(found->second);
    active_.erase(found);
    if (end.outcome == Outcome::kFailed) {
      fail("transfer " + std::to_string(end.transfer.value()) + " failed: " + end.reason);
    }
    if (end.outcome == Outcome::kCancelled) ++counts_.cancelled;
    if (ended.kind == transfer::TransferKind::kStore) {
      end_store(ended, end.outcome);
    } else {
      end_load(ended, end.outcome);
    }
  }
}

void Lane::end_store(const Transfer& ended, Outcome outcome) {
  const bool done = outcome == Outcome::kDone;
  for (const BlockSlot& pair : ended.blocks) {
    Slot& slot = slots_[pair.slot.value()];
    slot.state = done ? SlotState::kReadable : SlotState::kFree;
    if (!done) continue;
    check_slot(pair.slot, "after its store");
    counts_.stored_bytes += groups_[ended.group].pool->packed_bytes();
  }
  if (!done) return;
  ++counts_.stores;
  // Again and again: a slot may be stored anew before anybody loads it.
  if (options_.sabotage == Sabotage::kByte) {
    auto* const bytes = reinterpret_cast<std::uint8_t*>(
        arena_->chunk_address(ChunkId(ended.blocks.front().slot.value())));
    bytes[below(groups_[ended.group].pool->packed_bytes())] ^= 0x10U;
  }
}

void Lane::end_load(const Transfer& ended, Outcome outcome) {
  Group& group = groups_[ended.group];
  const bool done = outcome == Outcome::kDone;
  std::vector<BlockId> loaded;
  for (std::size_t i = 0; i < ended.blocks.size(); ++i) {
    Block& block = group.blocks[ended.blocks[i].block.value()];
    block.loading = false;
    block.content = done ? ended.contents[i] : Content{};
    --slots_[ended.blocks[i].slot.value()].num_readers;
    loaded.push_back(ended.blocks[i].block);
  }
  if (!done) return;
  ++counts_.loads;
  counts_.loaded_bytes += loaded.size() * group.pool->packed_bytes();
  check_blocks(ended.group, loaded, "after its load");
}

void Lane::drain() {
  if (!engine_->wait_idle(kHang)) fail("transfers do not end");
  poll();
  if (!active_.empty()) fail(std::to_string(active_.size()) + " transfers never ended");
  if (!compute_->synchronize(kHang)) fail("the compute stream does not end");
  if (engine_->stats().ring_used_bytes != 0) fail("the ring is not empty at rest");
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    std::vector<BlockId> known;
    for (std::uint32_t i = 0; i < groups_[group].blocks.size(); ++i) {
      if (groups_[group].blocks[i].content.known()) known.emplace_back(i);
    }
    check_blocks(group, known, "at the end");
  }
  for (std::uint32_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].num_readers != 0) fail("slot " + std::to_string(i) + " has readers at rest");
    if (slots_[i].state == SlotState::kReadable) check_slot(SlotId(i), "at the end");
  }
}

// ---- every byte ----

void Lane::check_slot(SlotId slot, const char* when) {
  const Slot& checked = slots_[slot.value()];
  const auto* const bytes =
      reinterpret_cast<const std::uint8_t*>(arena_->chunk_address(ChunkId(slot.value())));
  check(checked.content, {bytes, groups_[checked.group].pool->packed_bytes()},
        "slot " + std::to_string(slot.value()) + " (" + groups_[checked.group].pool->shape().name +
            ") " + when);
}

// Each block is known to be quiet, so that the reading stream has nobody to wait for.
void Lane::check_blocks(std::size_t number, std::span<const BlockId> blocks, const char* when) {
  const Group& group = groups_[number];
  const std::uint64_t bytes = group.pool->packed_bytes();
  const std::size_t at_once = read_buffer_->bytes().size() / bytes;
  for (std::size_t first = 0; first < blocks.size(); first += at_once) {
    const auto some = blocks.subspan(first, std::min(at_once, blocks.size() - first));
    for (std::size_t i = 0; i < some.size(); ++i) {
      group.pool->copy(*reads_, gpu::CopyDirection::kDeviceToHost, some[i],
                       read_buffer_->device_address() + i * bytes);
    }
    if (!reads_->synchronize(kHang)) fail("reading blocks back does not end");
    for (std::size_t i = 0; i < some.size(); ++i) {
      check(group.blocks[some[i].value()].content, read_buffer_->bytes().subspan(i * bytes, bytes),
            "block " + std::to_string(some[i].value()) + " (" + group.pool->shape().name + ") " +
                when);
    }
  }
}

void Lane::check(const Content& content, std::span<const std::uint8_t> found,
                 const std::string& where) {
  const std::size_t offset = content.first_difference(found);
  if (offset == found.size()) {
    counts_.verified_bytes += found.size();
    return;
  }
  std::vector<std::uint8_t> expected(found.size());
  content.write(expected);
  fail("MISMATCH: " + where + ", " + content.text() + ", offset " + std::to_string(offset) +
       " of " + std::to_string(found.size()) + ": expected " + hex(expected[offset]) + ", got " +
       hex(found[offset]));
}

void Lane::fail(const std::string& what) const {
  throw IntegrityError(what + " (thread " + std::to_string(options_.number) + ", cycle " +
                       std::to_string(counts_.cycles) + ")");
}

}  // namespace kvferry::integrity
