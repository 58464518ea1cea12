// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/memory/pool_budget.hpp"

#include "kvferry/cpu_tier/memory/huge_pages.hpp"

#include "cgroup_levels.hpp"

#include <algorithm>
#include <string>

namespace kvferry::cpu_tier {
namespace {

constexpr const char* kOtherPages = "ask for less, or for other pages (leave the key pages out)";

/// A page size as text, without its end: the kernel writes "2MB", Kubernetes "2Mi".
std::string size_text(std::uint64_t page_bytes) {
  const std::uint64_t mib = page_bytes >> 20U;
  if (mib == 0) return std::to_string(page_bytes >> 10U) + "K";
  return mib < 1024 ? std::to_string(mib) + "M" : std::to_string(mib >> 10U) + "G";
}

std::uint64_t num_pages_of(std::uint64_t bytes, const HugePagePool& pool) {
  return bytes / pool.page_bytes + (bytes % pool.page_bytes == 0 ? 0 : 1);
}

MemoryLimit limit_of_pool(std::uint64_t bytes, const HugePagePool& pool) {
  const std::uint64_t num_pages = num_pages_of(bytes, pool);
  const std::uint64_t num_missing = num_pages - std::min(num_pages, pool.num_free);
  const std::string enough = std::to_string(pool.num_total + num_missing);
  return {"the machine's pool of huge pages (HugePages_Free less HugePages_Rsvd, of " +
              size_text(pool.page_bytes) + "B)",
          (pool.num_free + pool.num_more) * pool.page_bytes,
          "sudo sysctl vm.nr_hugepages=" + enough + " makes it large enough; or " + kOtherPages};
}

}  // namespace

std::vector<MemoryLimit> read_pool_limits(std::uint64_t bytes, PoolStep step,
                                          const MachineRoot& root) {
  const HugePagePool pool = huge_page_pool(root.proc);
  std::vector<MemoryLimit> limits;
  if (step == PoolStep::kMap) limits.push_back(limit_of_pool(bytes, pool));
  const std::string prefix = "hugetlb." + size_text(pool.page_bytes) + "B.";
  const std::uint64_t needed = num_pages_of(bytes, pool) * pool.page_bytes;
  for (const CgroupLevel& level : cgroup_levels(root, "hugetlb")) {
    const bool v1 = level.version == CgroupVersion::kV1;
    for (const char* part : {"", "rsvd."}) {
      if (*part != '\0' && step == PoolStep::kPopulate) continue;
      const std::string name = prefix + part + (v1 ? "limit_in_bytes" : "max");
      const auto limit = read_cgroup_limit(level.directory / name);
      if (!limit) continue;
      const std::uint64_t usage =
          read_number(level.directory / (prefix + part + (v1 ? "usage_in_bytes" : "current")))
              .value_or(0);
      limits.push_back(
          {"cgroup " + name + " of " + level.directory.string(), *limit - std::min(*limit, usage),
           "echo " + std::to_string(usage + needed) + " > " + (level.directory / name).string() +
               " raises it (Kubernetes resources.limits.hugepages-" + size_text(pool.page_bytes) +
               "i); or " + kOtherPages,
           // The kernel itself counts reservations when memory is mapped. It counts use only at the
           // first touch, which is too late.
           *part == '\0' ? scope_of(level.directory) : 0});
    }
  }
  return limits;
}

void check_pool_budget(std::uint64_t bytes, PoolStep step, const MachineRoot& root) {
  const HugePagePool pool = huge_page_pool(root.proc);
  check_limits(num_pages_of(bytes, pool) * pool.page_bytes, read_pool_limits(bytes, step, root));
}

bool pool_has(std::uint64_t bytes, const MachineRoot& root) {
  const HugePagePool pool = huge_page_pool(root.proc);
  const std::uint64_t num_pages = num_pages_of(bytes, pool);
  return num_pages <= pool.num_free &&
         num_pages * pool.page_bytes <= room_bytes(read_pool_limits(bytes, PoolStep::kMap, root));
}

PageKind choose_pages(std::uint64_t bytes, std::optional<PageKind> wish, const MachineRoot& root) {
  if (wish) return *wish;
  return pool_has(bytes, root) ? PageKind::kPool : PageKind::kTransparent;
}

}  // namespace kvferry::cpu_tier
