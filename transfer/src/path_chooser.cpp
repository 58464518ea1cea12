// SPDX-License-Identifier: Apache-2.0
#include "path_chooser.hpp"

#include "kvferry/base/check.hpp"

#include "path_model.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kvferry::transfer {
namespace {

using gpu::CopyPath;

constexpr std::array<CopyPath, 4> kPaths = {CopyPath::kPerRun, CopyPath::kBatch, CopyPath::kKernel,
                                            CopyPath::kStaged};
constexpr std::array<std::uint64_t, 4> kRunClasses = {1, 2, 16, 256};
// Runs that are shorter or longer than all classes belong to the first or last class.
constexpr int kLog2Shortest = 8;
constexpr int kLog2Longest = 24;

std::size_t index_of(CopyPath path) { return static_cast<std::size_t>(path); }

std::string size_text(std::uint64_t bytes) {
  if (bytes >= std::uint64_t{1} << 20U) return std::to_string(bytes >> 20U) + " MiB";
  if (bytes >= std::uint64_t{1} << 10U) return std::to_string(bytes >> 10U) + " KiB";
  return std::to_string(bytes) + " B";
}

std::string rate_text(double bytes_per_second) {
  const auto tenths = static_cast<std::uint64_t>(std::llround(bytes_per_second / 1e8));
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " GB/s";
}

}  // namespace

PathChooser::PathChooser(const gpu::DeviceTraits& traits, std::optional<CopyPath> forced)
    : family_(traits.family), batches_by_default_(traits.batches_by_default), forced_(forced) {}

CopyPaths PathChooser::trusted(CopyPaths paths) const {
  if (!batches_by_default_) paths.remove(CopyPath::kBatch);
  return paths;
}

CopyPath PathChooser::choose(const CopyShape& shape, const CopyPaths& offered) {
  KVFERRY_CHECK(shape.num_runs != 0, "a path is chosen for a piece of no runs");
  if (forced_ && offered.has(*forced_)) return *forced_;
  if (shape.is_best_scattered && offered.has(CopyPath::kKernel)) return CopyPath::kKernel;
  const CopyPaths available = trusted(offered);
  MutexLock lock(mutex_);
  State& state = state_of(class_of(shape));
  const CopyPath chosen = best(state, available);
  ++state.num_choices;
  if (family_ == gpu::DeviceFamily::kHost || state.num_choices % kExploreEvery != 0) return chosen;
  return least_measured(state, available, chosen);
}

void PathChooser::learn(const CopyShape& shape, CopyPath path, std::chrono::nanoseconds time) {
  if (family_ == gpu::DeviceFamily::kHost || time.count() <= 0 || shape.total_bytes == 0) return;
  const double seconds = std::chrono::duration<double>(time).count();
  MutexLock lock(mutex_);
  measure(state_of(class_of(shape)), path, static_cast<double>(shape.total_bytes) / seconds);
}

PathChooser::Class PathChooser::class_of(const CopyShape& shape) {
  const std::uint64_t run_bytes = std::max<std::uint64_t>(shape.total_bytes / shape.num_runs, 1);
  const int log2 = static_cast<int>(std::bit_width(run_bytes)) - 1;
  const auto above = std::upper_bound(kRunClasses.begin(), kRunClasses.end(), shape.num_runs);
  return {shape.direction, static_cast<std::uint8_t>(std::clamp(log2, kLog2Shortest, kLog2Longest)),
          static_cast<std::uint8_t>(above - kRunClasses.begin() - 1)};
}

CopyShape PathChooser::shape_of(const Class& pieces) {
  const std::uint64_t num_runs = kRunClasses[pieces.runs];
  return {pieces.direction, num_runs, num_runs << pieces.log2_run_bytes};
}

PathChooser::State& PathChooser::state_of(const Class& pieces) {
  const auto known = classes_.find(pieces);
  return known != classes_.end() ? known->second
                                 : classes_.emplace(pieces, fresh(pieces)).first->second;
}

PathChooser::State PathChooser::fresh(const Class& pieces) const {
  State state;
  for (const CopyPath path : kPaths) {
    state.rates[index_of(path)].bytes_per_second = default_rate(family_, path, shape_of(pieces));
  }
  return state;
}

CopyPath PathChooser::best(const State& state, const CopyPaths& available) {
  CopyPath chosen = CopyPath::kPerRun;
  for (const CopyPath path : kPaths) {
    if (available.has(path) && state.rates[index_of(path)].bytes_per_second >
                                   state.rates[index_of(chosen)].bytes_per_second) {
      chosen = path;
    }
  }
  return chosen;
}

CopyPath PathChooser::least_measured(const State& state, const CopyPaths& available,
                                     CopyPath best) {
  const double worth = kHopeless * state.rates[index_of(best)].bytes_per_second;
  CopyPath chosen = best;
  for (const CopyPath path : kPaths) {
    const Rate& rate = state.rates[index_of(path)];
    if (!available.has(path) || path == best || rate.bytes_per_second < worth) continue;
    if (chosen == best || rate.num_measured < state.rates[index_of(chosen)].num_measured) {
      chosen = path;
    }
  }
  return chosen;
}

// Paths that were never measured keep their order. The first time of any path shows how wrong the
// defaults are on this machine, and scales the defaults of the other paths. Otherwise every path
// that was not tried yet would look fast next to measured times.
void PathChooser::measure(State& state, CopyPath path, double bytes_per_second) {
  Rate& mine = state.rates[index_of(path)];
  const bool first = std::all_of(state.rates.begin(), state.rates.end(),
                                 [](const Rate& rate) { return rate.num_measured == 0; });
  if (first) {
    const double factor = bytes_per_second / mine.bytes_per_second;
    for (Rate& rate : state.rates) rate.bytes_per_second *= factor;
  }
  mine.bytes_per_second = mine.num_measured == 0
                              ? bytes_per_second
                              : (1 - kWeight) * mine.bytes_per_second + kWeight * bytes_per_second;
  ++mine.num_measured;
}

std::string PathChooser::text(const CopyPaths& store_paths, const CopyPaths& load_paths) const {
  std::string text = std::string("copy paths of ") + gpu::to_string(family_);
  if (forced_)
    text += std::string(", forced to ") + gpu::to_string(*forced_) + ", if a piece can take it";
  MutexLock lock(mutex_);
  text += "\n  device to host, many runs: " +
          ladder(gpu::CopyDirection::kDeviceToHost, trusted(store_paths));
  text += "\n  host to device, many runs: " +
          ladder(gpu::CopyDirection::kHostToDevice, trusted(load_paths));
  for (const auto& [pieces, state] : classes_) {
    const std::string rates = measured(state);
    if (rates.empty()) continue;
    text += std::string("\n  measured ") + gpu::to_string(pieces.direction) + ", " +
            std::to_string(kRunClasses[pieces.runs]) + "+ runs of " +
            size_text(std::uint64_t{1} << pieces.log2_run_bytes) + ":" + rates;
  }
  return text;
}

std::string PathChooser::ladder(gpu::CopyDirection direction, const CopyPaths& paths) const {
  constexpr std::uint8_t kFirst = 10;
  constexpr std::uint8_t kLast = 21;
  std::string text;
  std::optional<CopyPath> last;
  for (std::uint8_t log2 = kFirst; log2 <= kLast; ++log2) {
    const Class pieces{direction, log2, kRunClasses.size() - 1};
    const auto known = classes_.find(pieces);
    const CopyPath path = best(known == classes_.end() ? fresh(pieces) : known->second, paths);
    if (path == last) continue;
    text += last ? ", " + std::string(gpu::to_string(path)) + " from " +
                       size_text(std::uint64_t{1} << log2)
                 : gpu::to_string(path);
    last = path;
  }
  return text;
}

std::string PathChooser::measured(const State& state) {
  std::string rates;
  for (const CopyPath path : kPaths) {
    const Rate& rate = state.rates[index_of(path)];
    if (rate.num_measured == 0) continue;
    rates += std::string(" ") + gpu::to_string(path) + " " + rate_text(rate.bytes_per_second) +
             " (" + std::to_string(rate.num_measured) + ")";
  }
  return rates;
}

}  // namespace kvferry::transfer
