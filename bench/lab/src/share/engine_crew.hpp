// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "share/shared_work.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <sys/types.h>
#include <vector>

namespace kvferry::bench {

/// Engine instances, each in its own process, that work until they are told to end. Used by one
/// thread.
class EngineCrew {
 public:
  struct Progress {
    std::uint64_t num_steps = 0;
    std::uint64_t num_found = 0;
    bool operator==(const Progress&) const = default;
  };

  /// One engine for each of `tiers`, in the tier of that path. Throws ResourceError.
  EngineCrew(const SharedWorkShape& shape, const std::vector<std::filesystem::path>& tiers);
  /// Kills the processes that have not ended.
  ~EngineCrew();
  EngineCrew(const EngineCrew&) = delete;
  EngineCrew& operator=(const EngineCrew&) = delete;

  /// Waits until each engine has made `count` steps. Throws ResourceError if one has ended, or if
  /// that takes a minute.
  void await_steps(std::uint64_t count);
  /// Returns the progress of all engines together during `time`.
  [[nodiscard]] Progress watch(std::chrono::nanoseconds time) const;
  /// Stops an engine at any point of its work (SIGSTOP), until end().
  void stop(std::size_t engine);
  /// Ends all engines. Returns whether all ended without an error.
  [[nodiscard]] bool end();

 private:
  /// The state of one engine, in memory that all processes share.
  struct alignas(64) Tally {
    std::atomic<std::uint64_t> num_steps{0};
    std::atomic<std::uint64_t> num_found{0};
    std::atomic<bool> told_to_end{false};
  };
  [[noreturn]] void work(const SharedWorkShape& shape, const std::filesystem::path& tier,
                         std::size_t engine) noexcept;
  [[nodiscard]] Progress so_far() const;

  const std::size_t num_engines_;
  Tally* tallies_;
  std::vector<pid_t> processes_;
};

}  // namespace kvferry::bench
