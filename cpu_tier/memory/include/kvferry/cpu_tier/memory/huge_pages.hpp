// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

/// What pages memory lies in, and what the machine has of the huge ones.
namespace kvferry::cpu_tier {

enum class PageKind : std::uint8_t {
  kNormal,       ///< Base pages only.
  kTransparent,  ///< Huge ones where the kernel has some at hand (MADV_HUGEPAGE).
  kPool          ///< Of the machine's pool of huge pages (MAP_HUGETLB), reserved when mapped.
};
[[nodiscard]] const char* to_string(PageKind kind);

/// The machine's pool of huge pages of the default size, as /proc/meminfo tells it.
struct HugePagePool {
  std::uint64_t page_bytes = 0;  ///< 2 MiB where nothing is told (x86-64, aarch64 of 4 KiB pages).
  std::uint64_t num_total = 0;   ///< In use, reserved and free.
  std::uint64_t num_free = 0;    ///< Neither in use nor reserved.
  /// By which the kernel may still enlarge it on demand (vm.nr_overcommit_hugepages).
  std::uint64_t num_more = 0;

  [[nodiscard]] std::uint64_t free_bytes() const { return page_bytes * num_free; }
};
[[nodiscard]] HugePagePool huge_page_pool(const std::filesystem::path& proc = "/proc");
/// Of the pool's pages. Read once: it is asked for within what is timed.
[[nodiscard]] std::uint64_t huge_page_bytes();
/// The inverse of to_string(). Throws ConfigError that lists the names.
[[nodiscard]] PageKind page_kind_from(std::string_view name);

/// The share in [0, 1] of `memory` that lies in huge pages of any kind (/proc/self/smaps); 0 if
/// that cannot be read. Reads the whole file: milliseconds.
[[nodiscard]] double huge_page_share(std::span<const std::byte> memory);

}  // namespace kvferry::cpu_tier
