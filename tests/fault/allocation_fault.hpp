// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvferry::fault {

/// Fails one allocation of the C++ heap, by std::bad_alloc: the `nth` (from 1) that this thread
/// makes while the fault lives. One at a time per thread.
class AllocationFault {
 public:
  explicit AllocationFault(std::uint64_t nth);
  ~AllocationFault();
  AllocationFault(const AllocationFault&) = delete;
  AllocationFault& operator=(const AllocationFault&) = delete;

  [[nodiscard]] bool fired() const;
};

/// Allocations of the C++ heap that have not been freed, of all threads.
[[nodiscard]] std::int64_t num_live_allocations();
/// What they take of the heap: what was asked for, and what it was rounded up to.
[[nodiscard]] std::int64_t num_live_bytes();

}  // namespace kvferry::fault
