// SPDX-License-Identifier: Apache-2.0
#include "meta/meta_rows.hpp"

#include "measure/samples.hpp"

#include <fmt/format.h>

namespace kvferry::bench {
namespace {

constexpr std::size_t kCacheLineBytes = 64;
// Goals apply from this number of blocks up: it is the tier of a large host.
constexpr std::uint32_t kGoalResidents = 500'000;
constexpr std::uint32_t kManyResidents = 10'000'000;

}  // namespace

std::optional<double> goal_ns(const MetaPart& part, std::uint32_t num_resident,
                              Temperature temperature) {
  if (num_resident >= kManyResidents) return part.many_goal_ns;
  if (num_resident < kGoalResidents) return std::nullopt;
  return temperature == Temperature::kWarm ? part.warm_goal_ns : part.cold_goal_ns;
}

void CacheSweep::run() {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < words_.size(); i += kCacheLineBytes / sizeof(std::uint64_t)) {
    sum += words_[i];
  }
  sum_ = sum;
}

std::vector<MetaRow> measure_meta(
    MetaOperation& operation, Temperature temperature, CacheSweep& sweep, const RoundCounts& rounds,
    Verifier& verifier, const std::function<void(std::uint32_t, std::uint32_t)>& on_round) {
  const bool warm = temperature == Temperature::kWarm;
  const MetaShape& shape = operation.shape();
  const std::uint64_t mismatches_before = verifier.num_mismatches();
  const std::span<const MetaPart> parts = operation.parts();
  AnswerSheet sheet;
  std::vector<Samples> times(parts.size());
  Samples bare;
  for (std::uint32_t round = 0; round < rounds.total(); ++round) {
    on_round(round, rounds.total());
    operation.prepare();
    warm ? operation.warm_tier() : sweep.run();
    const auto taken = operation.run();
    warm ? operation.warm_bare() : sweep.run();
    const auto bare_taken = operation.run_bare();
    operation.check(sheet);
    sheet.hand_in(verifier, fmt::format("{}: answers", parts.front().name));
    if (round < rounds.warm_up) continue;
    for (std::size_t i = 0; i < parts.size(); ++i) times[i].add(taken[i]);
    bare.add(bare_taken);
  }
  std::vector<MetaRow> rows;
  const auto ns_per_key = [&shape](const Samples& samples, double q) {
    return samples.percentile_us(q) * 1e3 / shape.keys_per_round();
  };
  for (std::size_t i = 0; i < parts.size(); ++i) {
    MetaRow& row = rows.emplace_back();
    row.operation = parts[i].name;
    row.tier = shape.tenancy == Tenancy::kShared ? "shared" : "private";
    row.temperature = warm ? "warm" : "cold";
    row.resident = shape.num_resident;
    row.batch = shape.batch;
    row.policy =
        fmt::format("{}/{}", to_string(shape.policy.eviction), to_string(shape.policy.admission));
    row.rounds = rounds.measured;
    row.ns_p50 = ns_per_key(times[i], 0.5);
    row.ns_p99 = ns_per_key(times[i], 0.99);
    if (parts[i].has_bare) {
      row.bare_ns = ns_per_key(bare, 0.5);
      row.ratio = row.ns_p50 / *row.bare_ns;
    }
    row.goal_ns = goal_ns(parts[i], shape.num_resident, temperature);
    row.verified = verifier.num_mismatches() == mismatches_before;
  }
  return rows;
}

}  // namespace kvferry::bench
