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

/// The one place where the way across the link is chosen. Pieces are put into classes by direction,
/// mean bytes of a run and number of runs; per class and path it keeps a rate: the default
/// (path_model.hpp) or a moving average of the device times of real pieces. The highest rate wins.
/// Every kExploreEvery-th choice of a class goes to the path that was measured least, unless its
/// rate is hopeless beside the best: a measured rate can go out of date, and a default can be
/// wrong. Deterministic. Thread-safe; chosen and learned by the transfer thread.
class PathChooser {
 public:
  /// One choice in so many explores: with kHopeless, that costs at most 1/64 of the throughput.
  static constexpr std::uint64_t kExploreEvery = 64;
  /// Below this share of the best rate a path is not explored.
  static constexpr double kHopeless = 0.5;
  /// Weight of a new time in the moving average.
  static constexpr double kWeight = 0.125;

  /// For a device with these traits. `forced` is taken for every piece that can go it. On the host
  /// back end nothing is learned: there is no link, and a run of the program shall copy as the last
  /// one did.
  PathChooser(const gpu::DeviceTraits& traits, std::optional<gpu::CopyPath> forced);

  /// The best of `offered` for `shape`, which has at least one run; kPerRun always is. The
  /// batch call is taken only if it is forced or DeviceTraits::batches_by_default.
  [[nodiscard]] gpu::CopyPath choose(const CopyShape& shape, const CopyPaths& offered);
  /// A piece that went `path` took `time`; 0 is not a measurement.
  void learn(const CopyShape& shape, gpu::CopyPath path, std::chrono::nanoseconds time);

  /// The choice among those paths for runs of 1 KiB to 2 MiB by direction, and every measured
  /// class, one a line.
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
  /// Those that are taken without being forced.
  [[nodiscard]] CopyPaths trusted(CopyPaths paths) const;
  /// From which run on which path is the best, in words.
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
