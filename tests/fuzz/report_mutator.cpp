// SPDX-License-Identifier: Apache-2.0
#include "report_mutator.hpp"

#include "report_life.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace kvferry::fuzz {
namespace {

using connector::ChunkChange;
using connector::ChunkEnded;
using connector::RankTopology;
using connector::StepReport;
using connector::StoreGathered;
using connector::TransferEnded;

constexpr std::size_t kMostItems = 6;

class Draw {
 public:
  explicit Draw(std::mt19937_64& random) : random_(random) {}

  std::uint64_t below(std::uint64_t end) { return random_() % end; }
  std::uint64_t number(std::uint64_t end) { return below(16) == 0 ? random_() : below(end); }
  std::uint32_t small(std::uint64_t end) { return static_cast<std::uint32_t>(number(end)); }
  TransferId transfer() { return TransferId(number(6)); }
  StoreGathered gathered() { return {transfer(), small(5)}; }
  TransferEnded ended() {
    return {transfer(), static_cast<Outcome>(below(3)), std::string(below(2), 'x')};
  }
  TransferEnded ended_load() {
    TransferEnded end = ended();
    if (end.outcome != Outcome::kFailed) return end;
    for (std::uint64_t i = below(3); i > 0; --i) {
      end.damaged.push_back({SlabClassId(below(16) == 0 ? 1 : 0), SlotId(small(5))});
    }
    return end;
  }
  DamagedSlot scrubbed() {
    return {SlabClassId(below(16) == 0 ? small(3) : 0), SlotId(small(2 * ReportLife::kNumChunks))};
  }
  ChunkEnded chunk_ended() {
    return {{ChunkId(small(4) * ReportLife::kRun), small(2 * ReportLife::kRun),
             static_cast<ChunkChange>(below(2))},
            std::string(below(2), 'x')};
  }
  RankTopology topology() {
    using Life = ReportLife;
    RankTopology topology{.world_size = Life::kNumRanks,
                          .num_blocks = Life::kNumBlocks,
                          .classes = {{Life::kSlotBytes, 1}},
                          .num_chunks = small(2 * Life::kNumChunks),
                          .max_chunks = small(4 * Life::kNumChunks),
                          .ring_blocks = small(32)};
    if (below(2) == 0) {
      topology.chunks_per_piece = below(8) == 0 ? small(4) : ReportLife::kRun;
      topology.first_chunks = small(4 * Life::kNumChunks);
    }
    switch (below(6)) {
      case 0:
        topology.world_size = small(4);
        break;
      case 1:
        topology.classes.resize(below(3));
        break;
      case 2:
        topology.replicas = {small(3), small(3)};
        break;
      default:
        break;
    }
    return topology;
  }

 private:
  std::mt19937_64& random_;
};

template <class T, class Make>
void change(std::vector<T>& list, Draw& draw, Make&& make) {
  const std::uint64_t what = draw.below(4);
  if (list.empty() || (what < 2 && list.size() < kMostItems)) {
    list.push_back(make());
  } else if (what == 2) {
    list[draw.below(list.size())] = make();
  } else {
    list.erase(list.begin() + static_cast<std::ptrdiff_t>(draw.below(list.size())));
  }
}

}  // namespace

void mutate(StepReport& report, std::mt19937_64& random) {
  Draw draw(random);
  report.domain = ReportLife::kDomain;
  switch (draw.below(9)) {
    case 0:
      report.rank = RankId(draw.small(ReportLife::kNumRanks));
      return;
    case 1:
      return change(report.gathered, draw, [&] { return draw.gathered(); });
    case 2:
      return change(report.stores, draw, [&] { return draw.ended(); });
    case 3:
      return change(report.loads, draw, [&] { return draw.ended_load(); });
    case 4:
      return change(report.announced, draw, [&] { return draw.transfer(); });
    case 5:
      if (report.topology) {
        report.topology.reset();
      } else {
        report.topology = draw.topology();
      }
      return;
    case 6:
      if (report.num_ready_chunks) {
        report.num_ready_chunks.reset();
      } else {
        report.num_ready_chunks = draw.small(2 * ReportLife::kNumChunks);
      }
      return;
    case 7:
      return change(report.chunks, draw, [&] { return draw.chunk_ended(); });
    case 8:
      return change(report.scrubbed, draw, [&] { return draw.scrubbed(); });
    default:
      report.domain = connector::DomainId(draw.small(9));
  }
}

}  // namespace kvferry::fuzz
