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

/// Engine instances, each a process of its own, that work until told to end. One thread.
class EngineCrew {
 public:
  struct Progress {
    std::uint64_t num_steps = 0;
    std::uint64_t num_found = 0;
    bool operator==(const Progress&) const = default;
  };

  /// One engine for each of `tiers`, in the tier of that path. Throws ResourceError.
  EngineCrew(const SharedWorkShape& shape, const std::vector<std::filesystem::path>& tiers);
  /// Kills who has not ended.
  ~EngineCrew();
  EngineCrew(const EngineCrew&) = delete;
  EngineCrew& operator=(const EngineCrew&) = delete;

  /// Waits until each has made so many steps. Throws ResourceError if one has ended, or they take a
  /// minute.
  void await_steps(std::uint64_t count);
  /// What all of them do in that time, together.
  [[nodiscard]] Progress watch(std::chrono::nanoseconds time) const;
  /// Stops one in the middle of whatever it does (SIGSTOP), until end().
  void stop(std::size_t engine);
  /// Whether all ended well.
  [[nodiscard]] bool end();

 private:
  /// In memory that all processes have.
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
