// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"

#include <cstdint>
#include <memory>

/// Launches of work of the kind that an engine gives a device. Only measurements want it (bench/).
/// It is here because its kernels are built and embedded with those that pack blocks, and because
/// only a back end can launch.
namespace kvferry::gpu {

enum class CoRunKind : std::uint8_t {
  /// Bound by arithmetic, as a prefill's matrix products are: chains of fused multiply-adds in
  /// registers, on every multiprocessor, next to no memory traffic. It is not a matrix product: no
  /// tensor core, no shared memory, no L2.
  kGemm,
  /// Bound by device memory, as decoding is: a[i] = b[i] + s * c[i] over buffers that are meant to
  /// be larger than the last cache.
  kStream
};

/// What one launch works on. Addresses are the device's.
struct CoRunLaunch {
  std::uintptr_t to = 0;         ///< Where results go: a float for each thread (kGemm), or a.
  std::uintptr_t from = 0;       ///< kStream: b.
  std::uintptr_t scaled = 0;     ///< kStream: c.
  std::uint64_t num_floats = 0;  ///< kStream: of each buffer, a multiple of 4.
  std::uint32_t num_passes = 1;  ///< kGemm: what each thread repeats.
};

/// One thread at a time. The owner quiesces the streams before it goes.
class CoRunLauncher {
 public:
  virtual ~CoRunLauncher() = default;
  /// Threads of a launch of kGemm; each has a result.
  [[nodiscard]] virtual std::uint32_t num_threads() const = 0;
  /// Submits one launch; `stream` is one of the device's. Throws DeviceError.
  virtual void launch(Stream& stream, CoRunKind kind, const CoRunLaunch& launch) = 0;

  /// Floating-point operations of a launch of kGemm.
  [[nodiscard]] std::uint64_t num_flop(std::uint32_t num_passes) const;
  /// What each thread of kGemm comes to, after one pass or more.
  [[nodiscard]] static float gemm_result();
  /// What kStream makes of an element of b and one of c.
  [[nodiscard]] static float stream_result(float b, float c);
};

/// On the host back end work runs on the thread of the stream, else as kernels on every
/// multiprocessor. Throws DeviceError if the build has none for the device, which outlives it.
[[nodiscard]] std::unique_ptr<CoRunLauncher> make_co_run_launcher(Device& device);

}  // namespace kvferry::gpu
