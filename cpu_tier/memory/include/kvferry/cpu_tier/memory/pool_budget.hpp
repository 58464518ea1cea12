// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/memory/huge_pages.hpp"
#include "kvferry/cpu_tier/memory/memory_budget.hpp"

#include <cstdint>
#include <optional>
#include <vector>

/// How much of the machine's pool of huge pages (huge_pages.hpp) the machine and its cgroups still
/// allow. The pages were set aside when the pool was made, so taking them does not count against
/// the memory limits, unless cgroup v2 is mounted with memory_hugetlb_accounting.
namespace kvferry::cpu_tier {

enum class PoolStep : std::uint8_t {
  kMap,      ///< Pages are reserved and then used: all limits apply.
  kPopulate  ///< The mapping has reserved the pages: only limits on use apply.
};

/// All limits on taking `bytes` more from the pool: its free pages (including those that the kernel
/// can add on demand); every level of cgroup v2 (`hugetlb.SIZE.max`, `.rsvd.max`) and v1
/// (`hugetlb.SIZE.limit_in_bytes`, `.rsvd.limit_in_bytes`). If a limit on use has no room for a
/// page, the first touch would be a fatal signal. The remedies name this number of bytes.
[[nodiscard]] std::vector<MemoryLimit> read_pool_limits(std::uint64_t bytes, PoolStep step,
                                                        const MachineRoot& root = {});

/// As check_memory_budget(), for `bytes` rounded up to pages of the pool.
void check_pool_budget(std::uint64_t bytes, PoolStep step, const MachineRoot& root = {});

/// Whether check_pool_budget() would accept `bytes`, and the kernel has the pages already. Making
/// new ones can take as long as making transparent huge pages.
[[nodiscard]] bool pool_has(std::uint64_t bytes, const MachineRoot& root = {});

/// The kind of pages for an arena of `bytes`: the requested kind, or the best that is available.
[[nodiscard]] PageKind choose_pages(std::uint64_t bytes, std::optional<PageKind> wish,
                                    const MachineRoot& root = {});

}  // namespace kvferry::cpu_tier
