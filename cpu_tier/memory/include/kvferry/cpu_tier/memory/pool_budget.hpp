// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/memory/huge_pages.hpp"
#include "kvferry/cpu_tier/memory/memory_budget.hpp"

#include <cstdint>
#include <optional>
#include <vector>

/// What the machine and its cgroups still allow of its pool of huge pages (huge_pages.hpp). The
/// pages were set aside when the pool was made: no limit on memory shrinks by taking them, except
/// where cgroup v2 is mounted with memory_hugetlb_accounting.
namespace kvferry::cpu_tier {

enum class PoolStep : std::uint8_t {
  kMap,      ///< Pages are reserved and then used: every limit counts.
  kPopulate  ///< Of a mapping that has reserved them: only what counts use.
};

/// All limits on `bytes` more of the pool: its free pages (those that the kernel may add on demand
/// included); every level of cgroup v2 (hugetlb.<size>.max, .rsvd.max) and v1
/// (hugetlb.<size>.limit_in_bytes, .rsvd.limit_in_bytes). Without a page of room under one that
/// counts use, the first touch would be a signal. Remedies are worded for that many bytes.
[[nodiscard]] std::vector<MemoryLimit> read_pool_limits(std::uint64_t bytes, PoolStep step,
                                                        const MachineRoot& root = {});

/// As check_memory_budget(), of `bytes` rounded up to pages of the pool.
void check_pool_budget(std::uint64_t bytes, PoolStep step, const MachineRoot& root = {});

/// Whether check_pool_budget() would let `bytes` be mapped, and the kernel need not make a page for
/// them: that can take as long as making transparent ones.
[[nodiscard]] bool pool_has(std::uint64_t bytes, const MachineRoot& root = {});

/// In what pages an arena of `bytes` lies: the kind that was wished for, or the best there is.
[[nodiscard]] PageKind choose_pages(std::uint64_t bytes, std::optional<PageKind> wish,
                                    const MachineRoot& root = {});

}  // namespace kvferry::cpu_tier
