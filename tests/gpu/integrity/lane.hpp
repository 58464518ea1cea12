// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/error.hpp"
#include "kvferry/cpu_tier/memory/arena.hpp"
#include "kvferry/gpu/device.hpp"
#include "kvferry/transfer/transfer_engine.hpp"

#include "block_pool.hpp"
#include "content.hpp"
#include "pinned_memory.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace kvferry::integrity {

/// A byte is not what it has to be, or a transfer did not end well. The message names block, slot,
/// content, offset, and what was found.
class IntegrityError : public Error {
 public:
  using Error::Error;
};

/// What is done wrong on purpose, to show that it is found.
enum class Sabotage : std::uint8_t {
  kNone,
  kByte,  ///< A byte of a slot is changed after its store was checked.
  kFence  ///< A load waits for a fence from before its block was zeroed.
};

struct LaneOptions {
  std::uint64_t seed = 0;
  std::uint32_t number = 0;  ///< Of the lane.
  std::uint64_t max_block_bytes = std::uint64_t{2} << 20U;
  std::uint64_t pool_bytes = std::uint64_t{256} << 20U;
  Sabotage sabotage = Sabotage::kNone;
};

/// Read while lanes run.
struct LaneCounts {
  std::atomic<std::uint64_t> cycles{0};
  std::atomic<std::uint64_t> stores{0};
  std::atomic<std::uint64_t> loads{0};
  std::atomic<std::uint64_t> cancelled{0};
  std::atomic<std::uint64_t> stored_bytes{0};
  std::atomic<std::uint64_t> loaded_bytes{0};
  std::atomic<std::uint64_t> verified_bytes{0};
};

/// One rank in miniature: pools of several geometries, an arena and a TransferEngine, driven at
/// random by one thread. It knows what every block and slot has to hold.
///
/// A cycle: blocks are written on the compute stream; blocks are stored, and straight behind the
/// gather, in the same stream, zeroed, overwritten or given new content; slots are loaded, first of
/// all into blocks that were gathered or zeroed a moment before. Every slot is checked when its
/// store ends, every block when its load ends, and everything again in drain().
class Lane {
 public:
  Lane(gpu::Device& device, const LaneOptions& options);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  /// One cycle. Throws IntegrityError.
  void step();
  /// Ends everything and checks all blocks and slots. Throws IntegrityError.
  void drain();
  [[nodiscard]] const LaneCounts& counts() const { return counts_; }

 private:
  struct Block {
    Content content;
    bool loading = false;
  };
  enum class SlotState : std::uint8_t { kFree, kFilling, kReadable };
  struct Slot {
    SlotState state = SlotState::kFree;
    std::size_t group = 0;
    Content content;
    std::uint32_t num_readers = 0;
  };
  struct Group {
    std::unique_ptr<BlockPool> pool;
    std::vector<Block> blocks;
    /// Gathered in this cycle: what a load is to take first.
    std::vector<BlockId> reused;
  };
  struct Transfer {
    transfer::TransferKind kind = transfer::TransferKind::kStore;
    std::size_t group = 0;
    std::vector<BlockSlot> blocks;
    std::vector<Content> contents;
  };
  /// Pinned memory of the next write, reused when its copy is done.
  struct WriteBuffer {
    std::unique_ptr<gpu::PinnedMemory> memory;
    std::unique_ptr<gpu::Event> copied;
  };

  [[nodiscard]] std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
  [[nodiscard]] bool one_in(std::uint64_t bound) { return below(bound) == 0; }
  [[nodiscard]] BlockId random_block(const Group& group) {
    return BlockId(static_cast<std::uint32_t>(below(group.blocks.size())));
  }

  void write(Group& group, BlockId block);
  /// In the order of the compute stream, behind a gather of the block.
  void reuse(Group& group, BlockId block);
  void store();
  void load();
  void cancel_one();
  /// Slots of nobody; makes room by evicting readable ones.
  [[nodiscard]] std::vector<SlotId> free_slots(std::size_t count);
  void make_noise();

  /// Takes note of what ended, and checks it.
  void poll();
  void end_store(const Transfer& ended, Outcome outcome);
  void end_load(const Transfer& ended, Outcome outcome);
  void check_slot(SlotId slot, const char* when);
  void check_blocks(std::size_t group, std::span<const BlockId> blocks, const char* when);
  void check(const Content& content, std::span<const std::uint8_t> found, const std::string& where);
  [[noreturn]] void fail(const std::string& what) const;

  const LaneOptions options_;
  std::mt19937_64 random_;
  LaneCounts counts_;
  std::vector<Group> groups_;
  std::vector<Slot> slots_;
  std::unique_ptr<cpu_tier::Arena> arena_;
  std::unique_ptr<gpu::DeviceBuffer> noise_memory_;
  std::array<WriteBuffer, 8> write_buffers_;
  std::size_t next_buffer_ = 0;
  std::unique_ptr<gpu::PinnedMemory> read_buffer_;
  std::unique_ptr<gpu::Stream> compute_;
  std::unique_ptr<gpu::Stream> noise_;
  std::unique_ptr<gpu::Stream> reads_;
  std::unique_ptr<gpu::Event> noise_made_;
  std::uint64_t next_transfer_ = 1;
  std::uint64_t next_key_ = 1;
  std::map<std::uint64_t, Transfer> active_;
  /// Last, so that it goes first.
  std::unique_ptr<transfer::TransferEngine> engine_;
};

}  // namespace kvferry::integrity
