// SPDX-License-Identifier: Apache-2.0
// The bulk-copy kernels (sm_90 and newer), a part of pack_kernels.cu. One warp per CTA keeps
// several stages of shared memory under way. The copy unit moves the bytes and the warp only
// issues, so few CTAs move many bytes. All addresses, strides, sizes and packed offsets are
// multiples of 16; pack_launch.cpp ensures that.

namespace kvferry::gpu {

/// Instructions for bulk copies: PTX ISA, "cp.async.bulk" and "mbarrier". Shared addresses are
/// 32-bit addresses of the shared window.
struct Bulk {
  static __device__ __forceinline__ uint32_t dynamic_shared_bytes() {
    uint32_t bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    return bytes;
  }
  /// The bytes here are read only once, so they are evicted from L2 first.
  static __device__ __forceinline__ uint64_t evict_first() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
  }
  static __device__ __forceinline__ void init(uint32_t barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
  }
  /// Makes the barriers visible to the copy unit.
  static __device__ __forceinline__ void publish_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  static __device__ __forceinline__ void expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
  }
  static __device__ __forceinline__ void wait(uint32_t barrier, uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}\n" ::"r"(barrier),
        "r"(parity)
        : "memory");
  }
  static __device__ __forceinline__ void load(uint32_t to, uint64_t from, uint32_t bytes,
                                              uint32_t barrier, uint64_t policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
        : "memory");
  }
  static __device__ __forceinline__ void store(uint64_t to, uint32_t from, uint32_t bytes,
                                               uint64_t policy) {
    asm volatile(
        "cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;" ::"l"(to),
        "r"(from), "r"(bytes), "l"(policy)
        : "memory");
  }
  static __device__ __forceinline__ void commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }
  /// Waits until all but this thread's newest group have read their stage.
  static __device__ __forceinline__ void wait_all_but_newest_read() {
    asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
  }
  static __device__ __forceinline__ void wait_all_written() {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
};

extern __shared__ __align__(128) unsigned char bulk_stages[];

template <WalkWay Way>
__device__ __forceinline__ void load_stage(const PackArguments& arguments, const PackUnit& unit,
                                           FragmentWindow& window, uint32_t stage, uint32_t barrier,
                                           uint64_t policy) {
  const uint32_t lane = threadIdx.x;
  const auto bytes = static_cast<uint32_t>(unit.end - unit.begin);
  if (lane == 0) Bulk::expect(barrier, bytes);
  __syncwarp();
  if (Way == WalkWay::kGather) {
    walk_bulk_pieces(
        arguments, unit, lane, window, [&](const PackPiece& piece, uint32_t offset) {
          Bulk::load(stage + offset, piece.pool, static_cast<uint32_t>(piece.bytes), barrier,
                     policy);
        });
  } else if (lane == 0) {
    Bulk::load(stage, packed_address(arguments, unit), bytes, barrier, policy);
  }
}

template <WalkWay Way>
__device__ __forceinline__ void store_stage(const PackArguments& arguments, const PackUnit& unit,
                                            FragmentWindow& window, uint32_t stage,
                                            uint64_t policy) {
  const uint32_t lane = threadIdx.x;
  if (Way == WalkWay::kScatter) {
    walk_bulk_pieces(
        arguments, unit, lane, window, [&](const PackPiece& piece, uint32_t offset) {
          Bulk::store(piece.pool, stage + offset, static_cast<uint32_t>(piece.bytes), policy);
        });
  } else if (lane == 0) {
    Bulk::store(packed_address(arguments, unit), stage,
                static_cast<uint32_t>(unit.end - unit.begin), policy);
  }
  Bulk::commit();
}

/// The number of stages follows from the shared memory of the launch, so it needs no parameter.
template <WalkWay Way>
__device__ __forceinline__ void run_bulk(const PackArguments& arguments) {
  const uint32_t num_stages = Bulk::dynamic_shared_bytes() / kBulkStageFootprint;
  const auto stages = static_cast<uint32_t>(__cvta_generic_to_shared(bulk_stages));
  const uint32_t barriers = stages + num_stages * kBulkUnitBytes;
  const uint64_t policy = Bulk::evict_first();
  if (threadIdx.x == 0) {
    for (uint32_t s = 0; s < num_stages; ++s) Bulk::init(barriers + s * 8);
    Bulk::publish_barriers();
  }
  __syncwarp();

  const UnitShare share = share_of(num_units(arguments, kBulkUnitBytes), blockIdx.x, gridDim.x);
  PackUnit unit = unit_at(arguments, kBulkUnitBytes, share.first);
  PackUnit next = unit;
  FragmentWindow window;
  uint32_t num_loaded = 0;
  const auto load_next = [&](uint32_t s) {
    load_stage<Way>(arguments, next, window, stages + s * kBulkUnitBytes, barriers + s * 8, policy);
    next = unit_after(arguments, kBulkUnitBytes, next);
    ++num_loaded;
  };
  KVFERRY_NO_UNROLL
  for (uint32_t s = 0; s + 1 < num_stages && num_loaded < share.count; ++s) load_next(s);
  // Stage s is stored, and the stage before it, whose store began one unit earlier, is loaded
  // again.
  uint32_t s = 0;
  uint32_t previous = num_stages - 1;
  uint32_t parity = 0;
  KVFERRY_NO_UNROLL
  for (uint32_t num_stored = 0; num_stored < share.count; ++num_stored) {
    Bulk::wait(barriers + s * 8, parity);
    store_stage<Way>(arguments, unit, window, stages + s * kBulkUnitBytes, policy);
    unit = unit_after(arguments, kBulkUnitBytes, unit);
    if (num_loaded < share.count) {
      Bulk::wait_all_but_newest_read();
      __syncwarp();
      load_next(previous);
    }
    previous = s;
    if (++s == num_stages) {
      s = 0;
      parity ^= 1;
    }
  }
  Bulk::wait_all_written();
}

}  // namespace kvferry::gpu

extern "C" __global__ void __launch_bounds__(32)
    kvferry_gather_bulk(KVFERRY_KERNEL_PARAMETER arguments) {
  kvferry::gpu::run_bulk<kvferry::gpu::WalkWay::kGather>(arguments);
}

extern "C" __global__ void __launch_bounds__(32)
    kvferry_scatter_bulk(KVFERRY_KERNEL_PARAMETER arguments) {
  kvferry::gpu::run_bulk<kvferry::gpu::WalkWay::kScatter>(arguments);
}
