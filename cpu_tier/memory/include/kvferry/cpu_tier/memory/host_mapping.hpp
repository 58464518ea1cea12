// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/memory/huge_pages.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvferry::cpu_tier {

class SharedFile;

/// Private anonymous memory of this process, or memory that it shares through a file. Forked
/// children do not have it, because copy-on-write of a page during a copy would tear the data. Its
/// address is aligned to a huge page. The destructor unmaps it. Several threads can populate and
/// release parts of it.
class HostMapping {
 public:
  /// Maps `bytes` > 0, rounded up to whole pages, without touching them. kPool reserves huge pages
  /// from the machine's pool at once, and throws if the pool has too few. Throws ResourceError.
  explicit HostMapping(std::uint64_t bytes, PageKind pages = PageKind::kTransparent);
  /// Maps all of a file. The file can be closed afterwards. The pages belong to the file:
  /// populating them only maps them here, and neither populating nor releasing them changes their
  /// contents.
  explicit HostMapping(const SharedFile& file);
  /// The same for a part (whole pages) of the file. Touching memory that is not reserved in the
  /// file can be a fatal signal.
  HostMapping(const SharedFile& file, std::uint64_t offset, std::uint64_t bytes);
  ~HostMapping();
  HostMapping(const HostMapping&) = delete;
  HostMapping& operator=(const HostMapping&) = delete;

  /// Makes every page, or the pages of a part of bytes(), resident and, if anonymous, zero. If the
  /// kernel has MADV_POPULATE_WRITE (Linux 5.14), a shortage is a ResourceError; a shortage that
  /// the kernel calls temporary is retried for a second first. Older kernels: each page is written
  /// to, and a shortage triggers the OOM killer.
  void populate() const { populate(bytes()); }
  void populate(std::span<std::byte> part) const;
  /// Moves the resident contents of bytes() into huge pages, wherever a whole huge page fits, for
  /// all processes that map the file. This works for shared memory even if shmem_enabled is
  /// "never". It uses as many huge pages as the kernel has available; none before Linux 6.1. Takes
  /// a millisecond for each.
  void make_huge() const noexcept;
  /// For a part (whole pages) of a file: bytes that are not resident in any process yet. An
  /// overestimate if the kernel does not report it (kPool).
  [[nodiscard]] std::uint64_t missing_bytes(std::span<std::byte> part) const;
  /// Releases the pages of a part (whole pages). Anonymous pages read as zero afterwards.
  void release(std::span<std::byte> part) const noexcept;
  /// Uses no huge pages for memory that is populated from now on: if memory is fragmented, the
  /// kernel can move gigabytes to find one. Only affects kTransparent.
  void stop_huge_pages() const noexcept;

  [[nodiscard]] std::uintptr_t address() const {
    return reinterpret_cast<std::uintptr_t>(bytes_.data());
  }
  [[nodiscard]] std::uint64_t size_bytes() const { return bytes_.size(); }
  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }
  [[nodiscard]] PageKind pages() const { return pages_; }
  /// Size of a base page, for every kind.
  [[nodiscard]] static std::uint64_t page_bytes();

 private:
  void keep_from_children();

  PageKind pages_;
  bool of_file_ = false;
  std::span<std::byte> mapped_;
  std::span<std::byte> bytes_;
};

}  // namespace kvferry::cpu_tier
