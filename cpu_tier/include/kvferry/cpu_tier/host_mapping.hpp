// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvferry::cpu_tier {

/// Private anonymous memory of this process: page-aligned, huge pages where the kernel has them,
/// absent from forked children (a copy-on-write page under a running copy would be torn). Unmapped
/// by its destructor.
class HostMapping {
 public:
  /// Maps `bytes` > 0, rounded up to whole pages; touches none. Throws ResourceError.
  explicit HostMapping(std::uint64_t bytes);
  ~HostMapping();
  HostMapping(const HostMapping&) = delete;
  HostMapping& operator=(const HostMapping&) = delete;

  /// Makes every page resident and zero. Where the kernel knows MADV_POPULATE_WRITE (Linux 5.14) a
  /// shortage is a ResourceError; before, each page is written to and a shortage is the kernel's
  /// OOM killer's.
  void populate();

  [[nodiscard]] std::uintptr_t address() const { return address_; }
  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }
  [[nodiscard]] static std::uint64_t page_bytes();

 private:
  std::uint64_t size_bytes_ = 0;
  std::uintptr_t address_ = 0;
};

}  // namespace kvferry::cpu_tier
