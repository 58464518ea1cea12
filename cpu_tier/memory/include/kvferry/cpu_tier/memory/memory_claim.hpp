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

/// Who claims memory of one node together.
struct ClaimGroup {
  /// The same in all processes of the group, and in no other; empty: nobody else.
  std::string name;
  /// Claims on this node, about as large as each other.
  std::uint32_t num_ranks = 1;
};

/// The memory that this process is about to take, or was granted and has not touched yet, told to
/// all other processes of the machine. Without it everybody who asks what is free would count what
/// others populate in the background: two ranks that each ask for 60 % would both pass (G5).
///
/// A claim is a small file whose owner holds a lock on it, so that it ends with its process. First
/// it is made, then limits() are read: of two claims made at once each sees the other, so that
/// never both are granted what there is once. Who makes one has its turn (ClaimTurn): without it
/// both may be refused where there is room for one.
class MemoryClaim {
 public:
  /// Claims `bytes` > 0 in pages of that kind. Where no file can be made the claim is not seen by
  /// others: why_unseen().
  MemoryClaim(std::uint64_t bytes, PageKind pages, const ClaimGroup& group = {},
              const MachineRoot& machine = {});
  /// What a claim would meet now, without making one: nobody sees it, and why_unseen() is empty.
  [[nodiscard]] static MemoryClaim imagined(std::uint64_t bytes, PageKind pages,
                                            const ClaimGroup& group = {},
                                            const MachineRoot& machine = {}) {
    return {Unseen{}, bytes, pages, group, machine};
  }
  /// Withdraws.
  ~MemoryClaim();
  MemoryClaim(const MemoryClaim&) = delete;
  MemoryClaim& operator=(const MemoryClaim&) = delete;

  /// The machine's limits as they stand now, less the others' claims.
  [[nodiscard]] std::vector<MemoryLimit> limits() const;
  /// Ranks of the group that have not claimed anything yet, and this one.
  [[nodiscard]] std::uint32_t num_ranks_to_come() const;
  /// What is wrong if that many claims of this size exceed limits(), as shortage_text() says it:
  /// the first rank speaks for all, before any of them has touched anything. Nothing if they do
  /// not.
  [[nodiscard]] std::optional<std::string> shortage() const;
  /// Throws ResourceError with shortage().
  void check() const;
  /// So much of it is to come: less was granted, or some was touched.
  void set_bytes(std::uint64_t bytes) noexcept;
  /// Why others do not see it; empty if they do.
  [[nodiscard]] const std::string& why_unseen() const { return why_unseen_; }

 private:
  struct Record;
  struct Unseen {};
  MemoryClaim(Unseen, std::uint64_t bytes, PageKind pages, const ClaimGroup& group,
              const MachineRoot& machine);
  /// Of all that live but this one.
  [[nodiscard]] std::vector<Record> others() const;
  void publish(const Record& record);

  std::uint64_t bytes_;
  const PageKind pages_;
  const ClaimGroup group_;
  const MachineRoot machine_;
  std::filesystem::path path_;
  std::string why_unseen_;
  /// So that a claim ends with its process, and not with the last child that it forked.
  OwnDescriptor descriptor_;
};

}  // namespace kvferry::cpu_tier
