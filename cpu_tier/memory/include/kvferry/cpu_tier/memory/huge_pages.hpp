// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

/// The kinds of pages, and the machine's pool of huge pages.
namespace kvferry::cpu_tier {

enum class PageKind : std::uint8_t {
  kNormal,       ///< Base pages only.
  kTransparent,  ///< Huge pages if the kernel has some available (MADV_HUGEPAGE).
  kPool          ///< From the machine's pool of huge pages (MAP_HUGETLB), reserved when mapped.
};
[[nodiscard]] const char* to_string(PageKind kind);

/// The machine's pool of huge pages of the default size, as reported by /proc/meminfo.
struct HugePagePool {
  std::uint64_t page_bytes =
      0;                        ///< 2 MiB if it is not reported (x86-64, aarch64 with 4 KiB pages).
  std::uint64_t num_total = 0;  ///< In use, reserved and free.
  std::uint64_t num_free = 0;   ///< Neither in use nor reserved.
  /// Number of pages by which the kernel can still enlarge it on demand
  /// (vm.nr_overcommit_hugepages).
  std::uint64_t num_more = 0;

  [[nodiscard]] std::uint64_t free_bytes() const { return page_bytes * num_free; }
};
[[nodiscard]] HugePagePool huge_page_pool(const std::filesystem::path& proc = "/proc");
/// Size of the pool's pages. Read only once, because timed code calls this.
[[nodiscard]] std::uint64_t huge_page_bytes();
/// The inverse of to_string(). Throws ConfigError that lists the names.
[[nodiscard]] PageKind page_kind_from(std::string_view name);

/// The share in [0, 1] of `memory` that lies in huge pages of any kind (/proc/self/smaps); 0 if
/// that file cannot be read. Reads the whole file, which takes milliseconds.
[[nodiscard]] double huge_page_share(std::span<const std::byte> memory);

}  // namespace kvferry::cpu_tier
