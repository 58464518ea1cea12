// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

namespace kvferry::recorder {

/// std::atomic_thread_fence(). GCC refuses that with ThreadSanitizer, which does not understand it;
/// there, an operation on an atomic orders as much.
inline void fence(std::memory_order order) {
#if defined(__SANITIZE_THREAD__)
  static std::atomic<int> ordered{0};
  ordered.fetch_add(0, std::memory_order_seq_cst);
  static_cast<void>(order);
#else
  std::atomic_thread_fence(order);
#endif
}

}  // namespace kvferry::recorder
