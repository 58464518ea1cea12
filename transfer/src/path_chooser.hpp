// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/mutex.hpp"
#include "kvferry/gpu/copy_path.hpp"
#include "kvferry/gpu/device.hpp"

#include "copy_shape.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace kvferry::transfer {

/// The one place that chooses the path across the link. Pieces are put into classes by direction,
/// mean bytes of a run and number of runs. Each class has a rate per path: the default
/// (path_model.hpp), or a moving average of the device times of real pieces. The highest rate wins.
/// Every kExploreEvery-th choice of a class takes the path that was measured least, unless its rate
/// is hopeless compared with the best: a measured rate can be out of date, and a default can be
/// wrong. CopyShape::is_best_scattered goes before all rates. Deterministic. Thread-safe; the
/// transfer thread calls choose() and learn().
class PathChooser {
 public:
  /// One choice in this many explores. With kHopeless, that costs at most 1/64 of the throughput.
  static constexpr std::uint64_t kExploreEvery = 64;
  /// Below this share of the best rate a path is not explored.
  static constexpr double kHopeless = 0.5;
  /// Weight of a new time in the moving average.
  static constexpr double kWeight = 0.125;

  /// For a device with these traits. `forced` is taken for every piece that can take it. On the
  /// host back end nothing is learned, because it has no link, and two runs of a program shall copy
  /// in the same way.
  PathChooser(const gpu::DeviceTraits& traits, std::optional<gpu::CopyPath> forced);

  /// The best of `offered` for `shape`, which has at least one run. kPerRun is always offered. The
  /// batch call is taken only if it is forced or DeviceTraits::batches_by_default.
  [[nodiscard]] gpu::CopyPath choose(const CopyShape& shape, const CopyPaths& offered);
  /// Notes that a piece took `time` on `path`; 0 is not a measurement.
  void learn(const CopyShape& shape, gpu::CopyPath path, std::chrono::nanoseconds time);

  /// The choice among those paths for runs of 1 KiB to 2 MiB by direction, and each measured class
  /// on its own line.
  [[nodiscard]] std::string text(const CopyPaths& store_paths, const CopyPaths& load_paths) const;

 private:
  static constexpr std::size_t kNumPaths = 4;
  /// A class of pieces.
  struct Class {
    gpu::CopyDirection direction = gpu::CopyDirection::kDeviceToHost;
    std::uint8_t log2_run_bytes = 0;
    std::uint8_t runs = 0;  ///< Index into the classes of numbers of runs.
    auto operator<=>(const Class&) const = default;
  };
  struct Rate {
    double bytes_per_second = 0;
    std::uint64_t num_measured = 0;
  };
  struct State {
    std::array<Rate, kNumPaths> rates;
    std::uint64_t num_choices = 0;
  };

  [[nodiscard]] static Class class_of(const CopyShape& shape);
  [[nodiscard]] static CopyShape shape_of(const Class& pieces);
  [[nodiscard]] State& state_of(const Class& pieces) KVFERRY_REQUIRES(mutex_);
  [[nodiscard]] State fresh(const Class& pieces) const;
  [[nodiscard]] static gpu::CopyPath best(const State& state, const CopyPaths& available);
  [[nodiscard]] static gpu::CopyPath least_measured(const State& state, const CopyPaths& available,
                                                    gpu::CopyPath best);
  /// The paths that are taken without being forced.
  [[nodiscard]] CopyPaths trusted(CopyPaths paths) const;
  /// The best path from each run size on, in words.
  [[nodiscard]] std::string ladder(gpu::CopyDirection direction, const CopyPaths& paths) const
      KVFERRY_REQUIRES(mutex_);
  [[nodiscard]] static std::string measured(const State& state);
  static void measure(State& state, gpu::CopyPath path, double bytes_per_second);

  const gpu::DeviceFamily family_;
  const bool batches_by_default_;
  const std::optional<gpu::CopyPath> forced_;
  mutable Mutex mutex_;
  std::map<Class, State> classes_ KVFERRY_GUARDED_BY(mutex_);
};

}  // namespace kvferry::transfer
