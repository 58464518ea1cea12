// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/memory/huge_pages.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvferry::cpu_tier {

class SharedFile;

/// Private anonymous memory of this process, or memory that it shares by a file; absent from forked
/// children (a copy-on-write page under a running copy would be torn). Begins where a huge page
/// does. Unmapped by its destructor. Parts of it may be populated and released by several threads.
class HostMapping {
 public:
  /// Maps `bytes` > 0, rounded up to whole pages; touches none. kPool takes huge pages out of the
  /// machine's pool at once and is a ResourceError where they do not suffice. Throws
  /// ResourceError.
  explicit HostMapping(std::uint64_t bytes, PageKind pages = PageKind::kTransparent);
  /// Maps all of a file, which may be closed then. Its pages keep what they hold when they are
  /// populated, which only maps them here, and when they are released: they are the file's.
  explicit HostMapping(const SharedFile& file);
  /// The same of a part of whole pages of the file. To touch what is not reserved there may be a
  /// signal.
  HostMapping(const SharedFile& file, std::uint64_t offset, std::uint64_t bytes);
  ~HostMapping();
  HostMapping(const HostMapping&) = delete;
  HostMapping& operator=(const HostMapping&) = delete;

  /// Makes every page, or those of a part of bytes(), resident and, if anonymous, zero. Where the
  /// kernel knows MADV_POPULATE_WRITE (Linux 5.14) a shortage is a ResourceError, one that the
  /// kernel calls passing after a second of tries; before, each page is written to and a shortage
  /// is the kernel's OOM killer's.
  void populate() const { populate(bytes()); }
  void populate(std::span<std::byte> part) const;
  /// Puts what bytes() hold into huge pages, resident ones, as far as there are whole ones in it:
  /// for all who map the file. Shared memory gets them so where shmem_enabled says never, too. As
  /// many as the kernel has at hand; none before Linux 6.1. A millisecond for each.
  void make_huge() const noexcept;
  /// Of a part (whole pages) of a file: bytes that are not resident yet, in any process. More than
  /// there are where the kernel does not tell (kPool).
  [[nodiscard]] std::uint64_t missing_bytes(std::span<std::byte> part) const;
  /// Gives the pages of a part (whole pages) back; anonymous ones read as zero afterwards.
  void release(std::span<std::byte> part) const noexcept;
  /// No huge pages for what is populated from here on: where memory is fragmented the kernel may
  /// move gigabytes to find one. Nothing but for kTransparent.
  void stop_huge_pages() const noexcept;

  [[nodiscard]] std::uintptr_t address() const {
    return reinterpret_cast<std::uintptr_t>(bytes_.data());
  }
  [[nodiscard]] std::uint64_t size_bytes() const { return bytes_.size(); }
  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }
  [[nodiscard]] PageKind pages() const { return pages_; }
  /// Of a base page, whatever the kind.
  [[nodiscard]] static std::uint64_t page_bytes();

 private:
  void keep_from_children();

  PageKind pages_;
  bool of_file_ = false;
  std::span<std::byte> mapped_;
  std::span<std::byte> bytes_;
};

}  // namespace kvferry::cpu_tier
