// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/memory/memory_claim.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/base/stable_hash.hpp"
#include "kvferry/cpu_tier/memory/pool_budget.hpp"
#include "kvferry/cpu_tier/memory/unnamed_file.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fcntl.h>
#include <limits>
#include <optional>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace kvferry::cpu_tier {
namespace {

namespace fs = std::filesystem;

constexpr const char* kClaimPrefix = "kvferry-claim-";
/// The magic number of a record's layout. A file that begins otherwise is not a claim.
constexpr std::uint64_t kClaimMagic = 0x316d69616c63766bU;
/// More limits than there are levels of cgroups anywhere.
constexpr std::size_t kMaxScopes = 32;

std::uint64_t saturated_sum(std::uint64_t a, std::uint64_t b) {
  return a + std::min(b, std::numeric_limits<std::uint64_t>::max() - a);
}

std::uint64_t saturated_product(std::uint64_t a, std::uint64_t b) {
  return a > std::numeric_limits<std::uint64_t>::max() / b
             ? std::numeric_limits<std::uint64_t>::max()
             : a * b;
}

}  // namespace

/// The content of a file. Other processes may be other builds, so its layout is fixed.
struct MemoryClaim::Record {
  std::uint64_t magic = kClaimMagic;
  std::uint64_t bytes = 0;  ///< It is changed in place.
  std::uint64_t group = 0;  ///< Hash of its name; 0: none.
  std::uint64_t of_pool = 0;
  /// The MemoryLimit::scope of the limits that it counts against; 0 after the last.
  std::array<std::uint64_t, kMaxScopes> scopes{};

  [[nodiscard]] bool counts_against(std::uint64_t scope) const {
    return scope != 0 && std::find(scopes.begin(), scopes.end(), scope) != scopes.end();
  }
};

namespace {

std::uint64_t hash_of(const std::string& name) { return name.empty() ? 0 : stable_hash(name); }

std::vector<MemoryLimit> limits_of(std::uint64_t bytes, PageKind pages,
                                   const MachineRoot& machine) {
  return pages == PageKind::kPool ? read_pool_limits(bytes, PoolStep::kMap, machine)
                                  : read_memory_limits(machine);
}

}  // namespace

MemoryClaim::MemoryClaim(Unseen, std::uint64_t bytes, PageKind pages, const ClaimGroup& group,
                         const MachineRoot& machine)
    : bytes_(bytes), pages_(pages), group_(group), machine_(machine) {}

// It delegates to another constructor first, so that the file is closed even if this one fails.
MemoryClaim::MemoryClaim(std::uint64_t bytes, PageKind pages, const ClaimGroup& group,
                         const MachineRoot& machine)
    : MemoryClaim(Unseen{}, bytes, pages, group, machine) {
  Record record{.bytes = bytes,
                .group = hash_of(group.name),
                .of_pool = pages == PageKind::kPool ? std::uint64_t{1} : 0};
  std::size_t num_scopes = 0;
  for (const MemoryLimit& limit : limits_of(bytes, pages, machine)) {
    if (num_scopes == kMaxScopes || limit.scope == 0 || record.counts_against(limit.scope))
      continue;
    record.scopes[num_scopes++] = limit.scope;
  }
  publish(record);
}

void MemoryClaim::publish(const Record& record) {
  const auto fail = [&](const char* step, const std::string& why) {
    descriptor_ = OwnDescriptor();
    path_.clear();
    why_unseen_ = std::string(step) + " in " + machine_.claims.string() + " failed: " + why +
                  "; other ranks and engines that start now can be granted the same memory";
  };
  // It is locked and written before it has a name: a process that finds an unlocked file takes it
  // for a dead process's.
  try {
    descriptor_ = OwnDescriptor::opened_by([this] { return open_unnamed(machine_.claims); });
  } catch (const ResourceError& error) {
    return fail("making a file to claim memory with", error.what());
  }
  if (!descriptor_) return fail("making a file to claim memory with", text_of(errno));
  const int file = descriptor_.get();
  struct stat status {};
  if (::flock(file, LOCK_EX | LOCK_NB) != 0 || ::fstat(file, &status) != 0 ||
      ::pwrite(file, &record, sizeof record, 0) != ssize_t{sizeof record} ||
      // Other users' processes count it too.
      ::fchmod(file, S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH) != 0) {
    return fail("writing a file to claim memory with", text_of(errno));
  }
  // No two files have the same number, and a file keeps it while any process has it open.
  path_ = machine_.claims / (kClaimPrefix + std::to_string(status.st_ino));
  if (const int error = give_name(file, path_); error != 0) {
    fail("naming a file to claim memory with", text_of(error));
  }
}

MemoryClaim::~MemoryClaim() {
  // In a forked child the file is still the parent's.
  if (descriptor_) ::unlink(path_.c_str());
}

std::vector<MemoryClaim::Record> MemoryClaim::others() const {
  std::vector<Record> records;
  visit_files(machine_.claims, kClaimPrefix, O_RDONLY, [&](const fs::path& path, int file) {
    if (path == path_) return;
    Record record;
    if (::flock(file, LOCK_SH | LOCK_NB) == 0) {
      // Its process is gone. A file of another user stays, and does not count.
      ::unlink(path.c_str());
    } else if (::pread(file, &record, sizeof record, 0) == ssize_t{sizeof record} &&
               record.magic == kClaimMagic) {
      records.push_back(record);
    }
  });
  return records;
}

std::vector<MemoryLimit> MemoryClaim::limits() const {
  // The claims are read first. So memory that is touched in between counts twice, and not zero
  // times.
  const std::vector<Record> records = others();
  std::vector<MemoryLimit> limits = limits_of(bytes_, pages_, machine_);
  for (MemoryLimit& limit : limits) {
    std::uint64_t claimed = 0;
    for (const Record& record : records) {
      const bool same_kind = (record.of_pool != 0) == (pages_ == PageKind::kPool);
      if (same_kind && record.counts_against(limit.scope)) {
        claimed = saturated_sum(claimed, record.bytes);
      }
    }
    if (claimed == 0) continue;
    limit.room_bytes -= std::min(limit.room_bytes, claimed);
    limit.name += ", less " + std::to_string(claimed) +
                  " bytes that other ranks or engines were granted but have not touched yet,";
  }
  return limits;
}

std::uint32_t MemoryClaim::num_ranks_to_come() const {
  const std::uint64_t group = hash_of(group_.name);
  if (group == 0) return 1;
  std::uint32_t left = group_.num_ranks;
  for (const Record& record : others()) {
    if (record.group == group && left > 1) --left;
  }
  return std::max(left, 1U);
}

std::optional<std::string> MemoryClaim::shortage() const {
  const std::uint32_t num_ranks = num_ranks_to_come();
  if (num_ranks == 1) return shortage_text(bytes_, limits());
  return shortage_text(
      saturated_product(bytes_, num_ranks), limits(),
      "the CPU tier's " + std::to_string(num_ranks) + " ranks that start on this node ask for");
}

void MemoryClaim::check() const {
  if (const auto text = shortage()) throw ResourceError(*text);
}

void MemoryClaim::set_bytes(std::uint64_t bytes) noexcept {
  bytes_ = bytes;
  if (!descriptor_) return;
  // If this write fails, the claim stays too large: others are refused, but this one's memory is
  // safe.
  static_cast<void>(::pwrite(descriptor_.get(), &bytes, sizeof bytes,
                             static_cast<off_t>(offsetof(Record, bytes))));
}

}  // namespace kvferry::cpu_tier
