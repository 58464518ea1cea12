// SPDX-License-Identifier: Apache-2.0
#pragma once

// g++, nvcc, hipcc, NVRTC and hipRTC read this: C++17, and no header at all at run time.
#if !defined(__CUDACC_RTC__) && !defined(__HIPCC_RTC__)
#include <cstdint>
#endif

namespace kvferry::gpu {

#if defined(__CUDACC_RTC__) || defined(__HIPCC_RTC__)
using uint32_t = unsigned int;
using uint64_t = unsigned long long;
#else
using std::uint32_t;
using std::uint64_t;
#endif

/// One fragment of a geometry in the form that the kernels read, from a table in device memory.
struct alignas(16) FragmentEntry {
  uint64_t base;
  uint64_t block_stride_bytes;
  uint64_t bytes;
  uint64_t packed_offset;
};

/// Most blocks of one launch: as many as fit into 4 KiB of kernel parameters, which is the limit of
/// CUDA before 12.1 or below sm_70, and of HIP.
inline constexpr uint32_t kMaxPackBlocks = 960;

/// The only parameter of every kernel here, passed by value. `fragments` is device memory,
/// ascending and without gaps in `packed_offset`. `packed` is an address for the device: device
/// memory, or registered host memory by its device address. Block `block_ids[i]` is packed at
/// `packed + i * packed_bytes`. If the kernel makes sums, its sum is added to the i-th number at
/// `sums`.
struct PackArguments {
  const FragmentEntry* fragments;
  uint32_t num_fragments;
  uint64_t packed_bytes;
  uint64_t packed;
  uint64_t sums;
  uint32_t num_blocks;
  uint32_t block_ids[kMaxPackBlocks];
};
static_assert(sizeof(void*) == 8 && sizeof(PackArguments) <= 4096, "one kernel parameter");

}  // namespace kvferry::gpu
