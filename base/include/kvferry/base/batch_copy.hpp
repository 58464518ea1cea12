// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/streaming_copy.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvferry {

/// One contiguous copy of at least one byte. Source and destination do not overlap; the
/// destinations of one batch are disjoint.
struct CopyRun {
  std::uintptr_t destination = 0;
  std::uintptr_t source = 0;
  std::uint64_t bytes = 0;
};

/// A batch of runs in host memory, seen as one row of bytes, run after run. The runs outlive it. A
/// thread that sees that a copy has returned also sees the copied bytes.
class BatchCopy {
 public:
  /// From this size on a second thread is worth its start: the copy takes 100 us at 10 GB/s, and
  /// waking a thread takes 40 us.
  static constexpr std::uint64_t kSharedBytes = std::uint64_t{1} << 20U;

  /// By default, batches of this size or more bypass the caches: a slot is rarely read soon after
  /// its store, and a load of this size would evict the engine's working data. The value is half of
  /// the smallest second-level cache of today's servers (AMD Zen 1 to 4: 512 KiB). glibc's memcpy
  /// bypasses the caches only from three quarters of the shared cache on, and only within one call
  /// (x86 non_temporal_threshold).
  static constexpr std::uint64_t kStreamingBytes = std::uint64_t{256} << 10U;

  /// A piece of the row, for one thread.
  struct Part {
    std::size_t run = 0;
    std::uint64_t offset = 0;  ///< In the run.
    std::uint64_t bytes = 0;
  };

  /// `bytes`: the total of all runs. If it is at least `streaming_bytes`, the copies bypass the
  /// caches.
  BatchCopy(std::span<const CopyRun> runs, std::uint64_t bytes,
            std::uint64_t streaming_bytes = kStreamingBytes)
      : runs_(runs), streams_(bytes >= streaming_bytes) {}

  /// Copies the bytes [begin, end) of the row on the calling thread.
  void copy(std::uint64_t begin, std::uint64_t end) const;
  /// Divides the first `end` bytes into parts for `num_threads` threads. Each thread takes the next
  /// part when it has finished one.
  [[nodiscard]] std::vector<Part> parts(std::uint64_t end, std::uint32_t num_threads) const;
  void copy(const Part& part) const;
  /// Whether the copies bypass the caches.
  [[nodiscard]] bool streams() const { return streams_; }
  /// For a caller that copies itself: calls `copy(run, offset, bytes)` for each piece of the part,
  /// which is `bytes` of the run with that number, from `offset` on. If streams(), it copies with
  /// copy_streaming(), and this function finishes it.
  template <typename Copy>
  void for_each(const Part& part, Copy copy) const;

 private:
  /// Prefetches the run after `run`.
  void ask_for_next(std::size_t run) const;

  std::span<const CopyRun> runs_;
  bool streams_;
};

template <typename Copy>
void BatchCopy::for_each(const Part& part, Copy copy) const {
  std::uint64_t left = part.bytes;
  std::uint64_t offset = part.offset;
  for (std::size_t run = part.run; left > 0; ++run, offset = 0) {
    if (streams_) ask_for_next(run);
    const std::uint64_t bytes = std::min(runs_[run].bytes - offset, left);
    copy(run, offset, bytes);
    left -= bytes;
  }
  if (streams_) finish_streaming();
}

}  // namespace kvferry
