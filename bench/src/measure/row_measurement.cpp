// SPDX-License-Identifier: Apache-2.0
#include "measure/row_measurement.hpp"

#include "measure/round_timer.hpp"

namespace kvferry::bench {

std::vector<RowTimes> measure_rows(
    gpu::Device& device, std::span<const std::unique_ptr<Lane>> lanes, std::size_t num_ways,
    const RoundCounts& rounds, Verifier& verifier,
    const std::function<void(std::uint32_t, std::uint32_t)>& on_round) {
  const std::uint32_t num_sets = lanes.front()->sets().num_sets;
  RoundTimer timer(device, lanes);
  std::vector<RowTimes> rows(num_ways);
  for (std::uint32_t round = 0; round < rounds.total(); ++round) {
    on_round(round, rounds.total());
    for (std::size_t turn = 0; turn < num_ways; ++turn) {
      const std::size_t way = (round + turn) % num_ways;
      RowTimes& times = rows[way];
      const std::uint64_t mismatches_before = verifier.num_mismatches();
      const PatternKey key = verifier.next_round();
      for (const auto& lane : lanes) lane->prepare(key);
      const RoundTime time = timer.run(way);
      for (const auto& lane : lanes) lane->check(key, verifier);
      if (verifier.num_mismatches() != mismatches_before) times.verified = false;
      if (round < rounds.warm_up) continue;
      times.submit.add(time.submit.wall / num_sets);
      times.submit_cpu.add(time.submit.cpu / num_sets);
      times.transfer.add(time.device / num_sets);
    }
  }
  return rows;
}

}  // namespace kvferry::bench
