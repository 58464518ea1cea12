// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/memory/huge_pages.hpp"

#include "kvferry/base/error.hpp"

#include "cgroup_levels.hpp"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

namespace kvferry::cpu_tier {
namespace {

constexpr std::uint64_t kKiB = 1024;
constexpr std::uint64_t kUsualPageBytes = std::uint64_t{2} << 20U;

}  // namespace

const char* to_string(PageKind kind) {
  switch (kind) {
    case PageKind::kNormal:
      return "normal";
    case PageKind::kTransparent:
      return "transparent";
    case PageKind::kPool:
      return "huge";
  }
  return "unknown";
}

PageKind page_kind_from(std::string_view name) {
  for (const PageKind kind : {PageKind::kNormal, PageKind::kTransparent, PageKind::kPool}) {
    if (name == to_string(kind)) return kind;
  }
  throw ConfigError("'" + std::string(name) +
                    "' is not a kind of pages: write normal, transparent or huge");
}

std::uint64_t huge_page_bytes() {
  static const std::uint64_t kBytes = huge_page_pool().page_bytes;
  return kBytes;
}

HugePagePool huge_page_pool(const std::filesystem::path& proc) {
  const auto field = [&](const char* name) { return read_field(proc / "meminfo", name); };
  HugePagePool pool;
  pool.page_bytes = field("Hugepagesize:").value_or(kUsualPageBytes / kKiB) * kKiB;
  pool.num_total = field("HugePages_Total:").value_or(0);
  pool.num_free = field("HugePages_Free:").value_or(0);
  pool.num_free -= std::min(pool.num_free, field("HugePages_Rsvd:").value_or(0));
  pool.num_more = read_number(proc / "sys" / "vm" / "nr_overcommit_hugepages").value_or(0);
  pool.num_more -= std::min(pool.num_more, field("HugePages_Surp:").value_or(0));
  return pool;
}

double huge_page_share(std::span<const std::byte> memory) {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::uintptr_t end = begin + memory.size();
  std::ifstream in("/proc/self/smaps");
  bool ours = false;
  std::uint64_t huge_bytes = 0;
  for (std::string line; std::getline(in, line);) {
    std::uintptr_t first = 0;
    std::uintptr_t last = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &first, &last) == 2) {
      if (first >= end) break;  // The areas ascend, and the kernel walks through the pages of each.
      ours = last > begin;
      continue;
    }
    if (!ours) continue;
    std::istringstream words(line);
    std::string name;
    std::uint64_t value = 0;
    if (!(words >> name >> value)) continue;
    if (name == "AnonHugePages:" || name == "ShmemPmdMapped:" || name == "Private_Hugetlb:" ||
        name == "Shared_Hugetlb:") {
      huge_bytes += value * kKiB;
    }
  }
  if (memory.empty()) return 0.0;
  return std::min(1.0, static_cast<double>(huge_bytes) / static_cast<double>(memory.size()));
}

}  // namespace kvferry::cpu_tier
