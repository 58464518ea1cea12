// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/copy_threads.hpp"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sched.h>
#include <thread>

namespace kvferry {
namespace {

constexpr std::uint32_t kMostThreads = 16;

// With some C libraries (glibc 2.35 and later) std::thread::hardware_concurrency() counts all
// processors of the machine.
std::uint32_t num_processors_in_mask() {
  cpu_set_t mask;
  // This fails if the machine has more than 1024 processors.
  if (::sched_getaffinity(0, sizeof mask, &mask) != 0) return std::thread::hardware_concurrency();
  return static_cast<std::uint32_t>(CPU_COUNT(&mask));
}

/// Number of processors that the quota allows; infinite if the files set no limit or do not exist.
/// A container sees its own cgroup at the root.
double quota(const std::filesystem::path& cgroups) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  double time = 0;
  double period = 0;
  if (std::ifstream(cgroups / "cpu.max") >> time >> period) return time / period;
  const std::filesystem::path v1 = cgroups / "cpu";
  if (!(std::ifstream(v1 / "cpu.cfs_quota_us") >> time) || time < 0) return kNone;
  if (!(std::ifstream(v1 / "cpu.cfs_period_us") >> period)) return kNone;
  return time / period;
}

}  // namespace

std::uint32_t num_usable_processors(const std::filesystem::path& cgroups) {
  const double most = num_processors_in_mask();
  return std::max(static_cast<std::uint32_t>(std::min(most, quota(cgroups))), 1U);
}

std::uint32_t num_copy_threads() { return std::min(num_usable_processors(), kMostThreads); }

}  // namespace kvferry
