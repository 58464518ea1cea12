// SPDX-License-Identifier: Apache-2.0
#pragma once

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

/// A batch of runs in host memory as one row of bytes, run after run. The runs outlive it. When a
/// copy of it returns, its bytes are there for whoever sees that it returned.
class BatchCopy {
 public:
  /// Of a batch of this size a second thread's start pays: at 10 GB/s it takes 100 us, and to wake
  /// a thread takes 40.
  static constexpr std::uint64_t kSharedBytes = std::uint64_t{1} << 20U;

  /// Batches from here on pass the caches by, if nothing else is said: nobody reads a slot soon
  /// after its store, and a load of this size would push out what an engine computes on. It is half
  /// of the smallest second-level cache of today's servers (AMD Zen 1 to 4: 512 KiB). glibc's
  /// memcpy does so only from three quarters of the shared cache on, and only within one call (x86
  /// non_temporal_threshold).
  static constexpr std::uint64_t kStreamingBytes = std::uint64_t{256} << 10U;

  /// A piece of the row, for one thread.
  struct Part {
    std::size_t run = 0;
    std::uint64_t offset = 0;  ///< In the run.
    std::uint64_t bytes = 0;
  };

  /// `bytes`: of all runs together; from `streaming_bytes` on they pass the caches by.
  BatchCopy(std::span<const CopyRun> runs, std::uint64_t bytes,
            std::uint64_t streaming_bytes = kStreamingBytes)
      : runs_(runs), streams_(bytes >= streaming_bytes) {}

  /// Copies the bytes [begin, end) of the row on the calling thread.
  void copy(std::uint64_t begin, std::uint64_t end) const;
  /// The first `end` bytes in parts for so many threads, each of which takes the next when it has
  /// done one.
  [[nodiscard]] std::vector<Part> parts(std::uint64_t end, std::uint32_t num_threads) const;
  void copy(const Part& part) const;

 private:
  std::span<const CopyRun> runs_;
  bool streams_;
};

}  // namespace kvferry
