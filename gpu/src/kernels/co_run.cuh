// SPDX-License-Identifier: Apache-2.0
// The kernels of co_run_launcher.hpp, part of pack_kernels.cu.

#if defined(__HIP__)
#define KVFERRY_CO_RUN_PARAMETER const kvferry::gpu::CoRunArguments
#else
#define KVFERRY_CO_RUN_PARAMETER const __grid_constant__ kvferry::gpu::CoRunArguments
#endif

extern "C" __global__ void __launch_bounds__(256, 4)
    kvferry_co_run_gemm(KVFERRY_CO_RUN_PARAMETER arguments) {
  const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  reinterpret_cast<float*>(arguments.to)[thread] =
      kvferry::gpu::co_run_gemm(arguments.num_passes, thread);
}

extern "C" __global__ void __launch_bounds__(256, 4)
    kvferry_co_run_stream(KVFERRY_CO_RUN_PARAMETER arguments) {
  float4* const to = reinterpret_cast<float4*>(arguments.to);
  const float4* const from = reinterpret_cast<const float4*>(arguments.from);
  const float4* const scaled = reinterpret_cast<const float4*>(arguments.scaled);
  const kvferry::gpu::uint64_t step = kvferry::gpu::uint64_t{gridDim.x} * blockDim.x;
  const kvferry::gpu::uint64_t first =
      kvferry::gpu::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  // If it unrolled, nvcc would count the rounds with a 64-bit division, which is a function call.
  KVFERRY_NO_UNROLL
  for (kvferry::gpu::uint64_t i = first; i < arguments.num_floats / 4; i += step) {
    const float4 b = from[i];
    const float4 c = scaled[i];
    float4 a;
    a.x = kvferry::gpu::co_run_triad(b.x, c.x);
    a.y = kvferry::gpu::co_run_triad(b.y, c.y);
    a.z = kvferry::gpu::co_run_triad(b.z, c.z);
    a.w = kvferry::gpu::co_run_triad(b.w, c.w);
    to[i] = a;
  }
}
