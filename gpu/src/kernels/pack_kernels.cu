// SPDX-License-Identifier: Apache-2.0
// The kernels, with one source for nvcc, hipcc and hipRTC. pack_launch.hpp has their names, shapes
// and shared memory.
#if defined(__HIP__) && !defined(__HIPCC_RTC__)
#include <hip/hip_runtime.h>
#endif

#include "kernels/co_run_work.hpp"
#include "kernels/pack_walk.hpp"

#if defined(__HIP__)
#define KVFERRY_KERNEL_PARAMETER const kvferry::gpu::PackArguments
#else
// It is read from constant memory in place. A plain parameter that is indexed would be copied to
// local memory.
#define KVFERRY_KERNEL_PARAMETER const __grid_constant__ kvferry::gpu::PackArguments
#endif

namespace kvferry::gpu {

template <uint32_t Width>
struct VectorOf;

#if defined(__HIP__)

template <>
struct VectorOf<16> {
  typedef unsigned int Type __attribute__((ext_vector_type(4)));
};
template <>
struct VectorOf<8> {
  typedef unsigned int Type __attribute__((ext_vector_type(2)));
};
template <>
struct VectorOf<4> {
  using Type = unsigned int;
};
template <>
struct VectorOf<2> {
  using Type = unsigned short;
};
template <>
struct VectorOf<1> {
  using Type = unsigned char;
};

/// Non-temporal both ways: nothing here is read twice. Address space 1 is global memory; a generic
/// pointer would give flat accesses, which also wait for local memory.
struct GlobalAccess {
  template <uint32_t Width>
  using Vector = typename VectorOf<Width>::Type;

  template <uint32_t Width>
  __device__ __forceinline__ Vector<Width> load(uint64_t from) {
    return __builtin_nontemporal_load((const __attribute__((address_space(1))) Vector<Width>*)from);
  }
  template <uint32_t Width>
  __device__ __forceinline__ void store(uint64_t to, Vector<Width> value) {
    __builtin_nontemporal_store(value, (__attribute__((address_space(1))) Vector<Width>*)to);
  }
  template <uint32_t Width>
  __device__ __forceinline__ uint32_t word(Vector<Width> v, uint32_t i) {
    if constexpr (Width == 16) {
      return v[i];
    } else {
      return v;
    }
  }
  /// A team is half a wave. Either all of its lanes are active here, or none is.
  __device__ __forceinline__ void add(uint64_t to, uint64_t part, uint32_t lane) {
    KVFERRY_UNROLL
    for (uint32_t distance = kTeamLanes / 2; distance > 0; distance /= 2) {
      const int other = static_cast<int>((threadIdx.x ^ distance) * sizeof(int));
      const auto low =
          static_cast<uint32_t>(__builtin_amdgcn_ds_bpermute(other, static_cast<int>(part)));
      const auto high =
          static_cast<uint32_t>(__builtin_amdgcn_ds_bpermute(other, static_cast<int>(part >> 32)));
      part += uint64_t{high} << 32 | low;
    }
    if (lane == 0) {
      __hip_atomic_fetch_add((__attribute__((address_space(1))) uint64_t*)to, part,
                             __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    }
  }
};

#else

template <>
struct VectorOf<16> {
  using Type = uint4;
};
template <>
struct VectorOf<8> {
  using Type = uint2;
};
template <>
struct VectorOf<4> {
  using Type = unsigned int;
};
template <>
struct VectorOf<2> {
  using Type = unsigned short;
};
template <>
struct VectorOf<1> {
  using Type = unsigned short;
};  // PTX has no 8-bit register.

/// The bytes that it reads are read only once and by no other thread, so they take no place in L1.
/// The bytes that it writes leave L2 first (.cs), before the weights that the next kernel needs
/// there. `.nc` is valid because no launch writes what it reads.
struct GlobalAccess {
  template <uint32_t Width>
  using Vector = typename VectorOf<Width>::Type;

  template <uint32_t Width>
  __device__ __forceinline__ Vector<Width> load(uint64_t from) {
    Vector<Width> v;
    if constexpr (Width == 16) {
      asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                   : "l"(from));
    } else if constexpr (Width == 8) {
      asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                   : "=r"(v.x), "=r"(v.y)
                   : "l"(from));
    } else if constexpr (Width == 4) {
      asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(from));
    } else if constexpr (Width == 2) {
      asm volatile("ld.global.nc.L1::no_allocate.u16 %0, [%1];" : "=h"(v) : "l"(from));
    } else {
      asm volatile("ld.global.nc.L1::no_allocate.u8 %0, [%1];" : "=h"(v) : "l"(from));
    }
    return v;
  }
  template <uint32_t Width>
  __device__ __forceinline__ void store(uint64_t to, Vector<Width> v) {
    if constexpr (Width == 16) {
      asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y),
                   "r"(v.z), "r"(v.w)
                   : "memory");
    } else if constexpr (Width == 8) {
      asm volatile("st.global.cs.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(v.x), "r"(v.y) : "memory");
    } else if constexpr (Width == 4) {
      asm volatile("st.global.cs.u32 [%0], %1;" ::"l"(to), "r"(v) : "memory");
    } else if constexpr (Width == 2) {
      asm volatile("st.global.cs.u16 [%0], %1;" ::"l"(to), "h"(v) : "memory");
    } else {
      asm volatile("st.global.cs.u8 [%0], %1;" ::"l"(to), "h"(v) : "memory");
    }
  }
  template <uint32_t Width>
  __device__ __forceinline__ uint32_t word(const Vector<Width>& v, uint32_t i) {
    if constexpr (Width == 16) {
      return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
    } else {
      return v;
    }
  }
  __device__ __forceinline__ void add(uint64_t to, uint64_t part, uint32_t lane) {
    KVFERRY_UNROLL
    for (uint32_t distance = kTeamLanes / 2; distance > 0; distance /= 2) {
      part += __shfl_xor_sync(0xffffffffU, part, distance);
    }
    if (lane == 0) asm volatile("red.global.add.u64 [%0], %1;" ::"l"(to), "l"(part) : "memory");
  }
};

#endif

template <WalkWay Way, WalkSums Sums>
__device__ __forceinline__ void run_vectors(const PackArguments& arguments) {
  GlobalAccess access;
  walk_units<Way, Sums>(access, arguments, {blockIdx.x, gridDim.x, threadIdx.x, blockDim.x});
}

}  // namespace kvferry::gpu

extern "C" __global__ void __launch_bounds__(256, 4)
    kvferry_gather(KVFERRY_KERNEL_PARAMETER arguments) {
  kvferry::gpu::run_vectors<kvferry::gpu::WalkWay::kGather, kvferry::gpu::WalkSums::kNo>(arguments);
}

extern "C" __global__ void __launch_bounds__(256, 4)
    kvferry_scatter(KVFERRY_KERNEL_PARAMETER arguments) {
  kvferry::gpu::run_vectors<kvferry::gpu::WalkWay::kScatter, kvferry::gpu::WalkSums::kNo>(
      arguments);
}

extern "C" __global__ void __launch_bounds__(256, 4)
    kvferry_gather_tagged(KVFERRY_KERNEL_PARAMETER arguments) {
  kvferry::gpu::run_vectors<kvferry::gpu::WalkWay::kGather, kvferry::gpu::WalkSums::kYes>(
      arguments);
}

extern "C" __global__ void __launch_bounds__(256, 4)
    kvferry_scatter_tagged(KVFERRY_KERNEL_PARAMETER arguments) {
  kvferry::gpu::run_vectors<kvferry::gpu::WalkWay::kScatter, kvferry::gpu::WalkSums::kYes>(
      arguments);
}

extern "C" __global__ void __launch_bounds__(256, 4)
    kvferry_sum(KVFERRY_KERNEL_PARAMETER arguments) {
  kvferry::gpu::run_vectors<kvferry::gpu::WalkWay::kSum, kvferry::gpu::WalkSums::kYes>(arguments);
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#include "kernels/pack_bulk.cuh"
#endif

#include "kernels/co_run.cuh"
