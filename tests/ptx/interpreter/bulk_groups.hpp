// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvferry::ptx {

/// The bulk groups of one lane: the stores between two commits, counted until they have read their
/// stage and until they have written.
class BulkGroups {
 public:
  /// A store joins the group that is open; returns the group's number.
  std::uint32_t add_store();
  void commit();
  /// The copy unit has read, has written a store of `group`.
  void store_read(std::uint32_t group) { --groups_[group].num_unread; }
  void store_written(std::uint32_t group) { --groups_[group].num_unwritten; }

  /// Groups that have been committed.
  [[nodiscard]] std::uint32_t num_committed() const { return num_committed_; }
  /// Whether the first `count` groups have read, have written all.
  [[nodiscard]] bool have_read(std::uint32_t count) const;
  [[nodiscard]] bool have_written(std::uint32_t count) const;
  /// Stores since the last commit.
  [[nodiscard]] bool has_open_stores() const { return groups_.size() > num_committed_; }

 private:
  struct Group {
    std::size_t num_unread = 0;
    std::size_t num_unwritten = 0;
  };
  std::vector<Group> groups_;
  std::uint32_t num_committed_ = 0;
};

}  // namespace kvferry::ptx
