// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/own_descriptor.hpp"
#include "kvferry/cpu_tier/memory/huge_pages.hpp"
#include "kvferry/cpu_tier/memory/memory_budget.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace kvferry::cpu_tier {

/// Processes that claim memory of one node together.
struct ClaimGroup {
  /// The same in all processes of the group, and different in all others; empty: the process is
  /// alone.
  std::string name;
  /// Number of claims on this node; all have about the same size.
  std::uint32_t num_ranks = 1;
};

/// Publishes, to all other processes of the machine, the memory that this process is about to take,
/// or was granted and has not touched yet. Without claims, a process would count memory as free
/// that others are about to populate: two ranks that each ask for 60 % would both be accepted (G5).
///
/// A claim is a small file that its owner has locked, so it ends with its process. The claim is
/// made before limits() are read. So two claims that are made at the same time see each other, and
/// the same memory is never granted twice. A process takes its turn (ClaimTurn) before it makes a
/// claim; without turns, both claims could be refused although there is room for one.
class MemoryClaim {
 public:
  /// Claims `bytes` > 0 in pages of that kind. If no file can be made, other processes do not see
  /// the claim; see why_unseen().
  MemoryClaim(std::uint64_t bytes, PageKind pages, const ClaimGroup& group = {},
              const MachineRoot& machine = {});
  /// Reads the limits for a claim without making it: other processes do not see it, and
  /// why_unseen() is empty.
  [[nodiscard]] static MemoryClaim imagined(std::uint64_t bytes, PageKind pages,
                                            const ClaimGroup& group = {},
                                            const MachineRoot& machine = {}) {
    return {Unseen{}, bytes, pages, group, machine};
  }
  /// Withdraws the claim.
  ~MemoryClaim();
  MemoryClaim(const MemoryClaim&) = delete;
  MemoryClaim& operator=(const MemoryClaim&) = delete;

  /// The machine's limits as they are now, minus the claims of other processes.
  [[nodiscard]] std::vector<MemoryLimit> limits() const;
  /// Number of ranks of the group that have not claimed anything yet, plus this one.
  [[nodiscard]] std::uint32_t num_ranks_to_come() const;
  /// An error text as from shortage_text() if that many claims of this size exceed limits();
  /// nothing if they fit. So the first rank checks for all ranks, before any of them has touched
  /// memory.
  [[nodiscard]] std::optional<std::string> shortage() const;
  /// Throws ResourceError with shortage() if there is one.
  void check() const;
  /// Reduces the claim to the bytes that are still to come, because less was granted or some was
  /// touched.
  void set_bytes(std::uint64_t bytes) noexcept;
  /// Why other processes do not see the claim; empty if they do.
  [[nodiscard]] const std::string& why_unseen() const { return why_unseen_; }

 private:
  struct Record;
  struct Unseen {};
  MemoryClaim(Unseen, std::uint64_t bytes, PageKind pages, const ClaimGroup& group,
              const MachineRoot& machine);
  /// The claims of all living processes, except this one.
  [[nodiscard]] std::vector<Record> others() const;
  void publish(const Record& record);

  std::uint64_t bytes_;
  const PageKind pages_;
  const ClaimGroup group_;
  const MachineRoot machine_;
  std::filesystem::path path_;
  std::string why_unseen_;
  /// Makes a claim end with its process, and not with the last child that it forked.
  OwnDescriptor descriptor_;
};

}  // namespace kvferry::cpu_tier
