// SPDX-License-Identifier: Apache-2.0
#include "pack_case.hpp"

#include "kvferry/gpu/tag_sum.hpp"

#include "kernels/pack_addressing.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvferry::ptx {
namespace {

using gpu::BlockGeometry;
using gpu::Fragment;
using gpu::PackKernel;
using gpu::PackSums;
using gpu::PackWay;

constexpr std::uint64_t kGiB = 1ULL << 30U;
// Far from each other and from the pool.
constexpr std::uint64_t kTableAddress = 0x7000'0000'0000U;
constexpr std::uint64_t kPackedAddress = 0x7100'0000'0000U;
constexpr std::uint64_t kSumsAddress = 0x7200'0000'0000U;

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}
  /// From `low` to `high`.
  std::uint64_t operator()(std::uint64_t low, std::uint64_t high) {
    return std::uniform_int_distribution<std::uint64_t>(low, high)(random_);
  }
  Random& random() { return random_; }

 private:
  Random random_;
};

std::vector<std::uint8_t> random_bytes(std::uint64_t count, Random& random) {
  std::vector<std::uint8_t> bytes(count);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
  return bytes;
}

/// Bytes of a fragment, before they are rounded up to the case's alignment.
std::uint64_t draw_bytes(Draw& draw, std::uint64_t style) {
  switch (style) {
    case 0:  // More fragments in a unit than a team has lanes.
      return draw(1, 100);
    case 1:  // Around a unit's size.
      return gpu::kUnitBytes - 4 + draw(0, 8);
    case 2:
      return 512ULL << draw(0, 4);
    case 3:
      return draw(1, 30000);
    default:
      return 16 * draw(1, 500);
  }
}

BlockGeometry draw_geometry(Draw& draw, std::uint64_t alignment) {
  const auto round_up = [&](std::uint64_t n) {
    return (n + alignment - 1) / alignment * alignment;
  };
  const std::uint64_t style = draw(0, 4);
  const auto num_blocks = static_cast<std::uint32_t>(draw(1, 40));
  const std::uint64_t num_fragments = style == 0 ? draw(40, 200) : draw(1, 12);
  std::vector<Fragment> fragments;
  std::uint64_t offset = 0;
  for (std::uint64_t i = 0; i < num_fragments; ++i) {
    const std::uint64_t bytes = round_up(draw_bytes(draw, style));
    const std::uint64_t stride = bytes + (draw(0, 2) == 0 ? 0 : alignment * draw(0, 5));
    fragments.push_back({offset, stride, bytes});
    offset += num_blocks * stride + alignment * draw(0, 3);
  }
  // Often across a multiple of 4 GiB.
  const std::uint64_t base = draw(1, 20000) * 4 * kGiB - round_up(draw(0, offset));
  for (Fragment& fragment : fragments) fragment.base += base;
  return gpu::make_block_geometry(std::move(fragments), num_blocks);
}

/// A gather and a sum may name a block twice; a scatter may not.
std::vector<BlockId> draw_blocks(Draw& draw, const BlockGeometry& geometry,
                                 const PackChoice& choice) {
  // Sums take many instructions where bytes are not aligned.
  const std::uint64_t most_bytes = choice.sums == PackSums::kYes ? 40'000 : 150'000;
  const std::uint64_t most = std::clamp<std::uint64_t>(most_bytes / geometry.packed_bytes, 1, 960);
  std::vector<BlockId> blocks;
  if (choice.way != PackWay::kScatter) {
    for (std::uint64_t i = draw(1, most); i > 0; --i) {
      blocks.emplace_back(static_cast<std::uint32_t>(draw(0, geometry.num_blocks - 1)));
    }
    return blocks;
  }
  for (std::uint32_t i = 0; i < geometry.num_blocks; ++i) blocks.emplace_back(i);
  std::shuffle(blocks.begin(), blocks.end(), draw.random());
  blocks.resize(draw(1, std::min<std::uint64_t>(most, geometry.num_blocks)));
  return blocks;
}

GlobalMemory memory_of(const BlockGeometry& geometry, const std::vector<BlockId>& blocks,
                       const std::vector<gpu::FragmentEntry>& table, std::uint64_t packed,
                       const PackChoice& choice, Random& random) {
  const bool scatters = choice.way == PackWay::kScatter;
  GlobalMemory memory;
  std::vector<std::uint8_t> table_bytes(table.size() * sizeof(gpu::FragmentEntry));
  std::memcpy(table_bytes.data(), table.data(), table_bytes.size());
  memory.map(kTableAddress, Access::kRead, std::move(table_bytes));
  const Access of_pool = scatters ? Access::kWrite : Access::kRead;
  std::set<std::uint32_t> numbers;  // a gather may name a block twice
  for (const BlockId block : blocks) numbers.insert(block.value());
  for (const std::uint32_t number : numbers) {
    const BlockId block(number);
    for (std::size_t f = 0; f < geometry.fragments.size(); ++f) {
      memory.map(geometry.fragment_address(f, block), of_pool,
                 random_bytes(geometry.fragments[f].bytes, random));
    }
  }
  if (choice.way != PackWay::kSum) {
    memory.map(packed, scatters ? Access::kRead : Access::kWrite,
               random_bytes(blocks.size() * geometry.packed_bytes, random));
  }
  if (choice.sums == PackSums::kYes) {
    memory.map(kSumsAddress, Access::kAdd,
               random_bytes(blocks.size() * sizeof(std::uint64_t), random));
  }
  return memory;
}

/// What the sums shall be after the launch, by the host's tag_sum().
std::vector<std::uint64_t> sums_of(const BlockGeometry& geometry,
                                   const std::vector<BlockId>& blocks, std::uint64_t packed,
                                   PackWay way, GlobalMemory memory) {
  std::vector<std::uint64_t> sums(blocks.size());
  std::memcpy(sums.data(), memory.host_address(kSumsAddress, sums.size() * sizeof(sums[0])),
              sums.size() * sizeof(sums[0]));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    for (std::size_t f = 0; f < geometry.fragments.size(); ++f) {
      const std::uint64_t offset = geometry.packed_offsets[f];
      const std::uint64_t bytes = geometry.fragments[f].bytes;
      const std::uint64_t from = way == PackWay::kScatter
                                     ? packed + i * geometry.packed_bytes + offset
                                     : geometry.fragment_address(f, blocks[i]);
      sums[i] +=
          gpu::tag_sum(std::as_bytes(std::span(memory.host_address(from, bytes), bytes)), offset);
    }
  }
  return sums;
}

LaunchCase make_case(const BlockGeometry& geometry, const std::vector<BlockId>& blocks,
                     std::uint64_t packed, const PackChoice& choice, const gpu::PackTuning& tuning,
                     Draw& draw) {
  const auto num_blocks = static_cast<std::uint32_t>(blocks.size());
  const bool bulk = tuning.kernel == PackKernel::kBulk;
  const gpu::PackDevice device{static_cast<std::uint32_t>(draw(1, 4)),
                               bulk ? gpu::BulkCopy::kYes : gpu::BulkCopy::kNo};
  const gpu::PackLaunch plan =
      plan_pack(geometry, num_blocks, packed, choice.way, device, tuning, choice.sums);
  const std::vector<gpu::FragmentEntry> table = fragment_table(geometry);
  gpu::PackArguments arguments =
      pack_arguments(geometry, kTableAddress, blocks, packed, kSumsAddress);
  // Ids that are not used have no value: one that no pool has, the same in every run.
  std::fill(arguments.block_ids + num_blocks, arguments.block_ids + gpu::kMaxPackBlocks,
            std::numeric_limits<std::uint32_t>::max());
  LaunchCase launch{plan.kernel,
                    {plan.num_ctas, plan.threads_per_cta, plan.shared_bytes},
                    {},
                    {},
                    std::string(plan.kernel) + ": " + std::to_string(geometry.fragments.size()) +
                        " fragments, " + std::to_string(num_blocks) + " blocks of " +
                        std::to_string(geometry.packed_bytes) + " bytes, " +
                        std::to_string(plan.num_ctas) + " CTAs, " +
                        std::to_string(plan.shared_bytes) + " bytes of shared memory"};
  const auto bytes = std::as_bytes(std::span(&arguments, 1));
  launch.parameter.assign(bytes.begin(), bytes.end());
  launch.memory = memory_of(geometry, blocks, table, packed, choice, draw.random());
  launch.table = kTableAddress;
  if (choice.sums == PackSums::kYes) {
    launch.sums = sums_of(geometry, blocks, packed, choice.way, launch.memory);
  }
  return launch;
}

}  // namespace

LaunchCase make_pack_case(std::uint64_t seed, const PackChoice& choice) {
  constexpr std::array<std::uint64_t, 5> kAlignments{1, 2, 4, 8, 16};
  Draw draw(seed);
  // Every access width gets its share of the seeds.
  const std::uint64_t alignment =
      choice.kernel == PackKernel::kBulk ? gpu::kMaxWidth : kAlignments[seed % kAlignments.size()];
  const BlockGeometry geometry = draw_geometry(draw, alignment);
  const std::vector<BlockId> blocks = draw_blocks(draw, geometry, choice);
  gpu::PackTuning tuning;
  tuning.kernel = choice.kernel;
  if (draw(0, 1) == 0) tuning.max_ctas = static_cast<std::uint32_t>(draw(1, 7));
  if (draw(0, 1) == 0) tuning.bulk_stages = static_cast<std::uint32_t>(draw(2, 16));
  const std::uint64_t packed = kPackedAddress + alignment * draw(0, 40);
  return make_case(geometry, blocks, packed, choice, tuning, draw);
}

LaunchCase make_far_case(const PackChoice& choice) {
  constexpr std::uint64_t kBase = 5 * kGiB + 4096;
  Draw draw(0);
  const BlockGeometry geometry =
      gpu::make_block_geometry({{kBase, 3 * kGiB + 65536, 32768},
                                {kBase + kGiB + 16, 5 * kGiB + 4096, 12288},
                                {kBase + 2 * kGiB + 4096, 4 * kGiB + 48, 512}},
                               15);
  const std::vector<BlockId> blocks{BlockId(14), BlockId(0), BlockId(7), BlockId(13)};
  return make_case(geometry, blocks, kPackedAddress, choice, {choice.kernel, 0, 0}, draw);
}

}  // namespace kvferry::ptx
