// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"

#include <cstdint>
#include <memory>

/// Launches work that resembles an engine's. Only measurements (bench/) use it. It is in gpu/
/// because its kernels are built and embedded together with those that pack blocks, and because
/// only a back end can launch kernels.
namespace kvferry::gpu {

enum class CoRunKind : std::uint8_t {
  /// Limited by arithmetic, like a prefill's matrix products: chains of fused multiply-adds in
  /// registers, on every multiprocessor, with almost no memory traffic. It is not a matrix product:
  /// it uses no tensor core, no shared memory, no L2.
  kGemm,
  /// Limited by device memory, like decoding: a[i] = b[i] + s * c[i] over buffers that should be
  /// larger than the last-level cache.
  kStream
};

/// The data of one launch. Addresses are device addresses.
struct CoRunLaunch {
  std::uintptr_t to = 0;         ///< Where results go: a float for each thread (kGemm), or a.
  std::uintptr_t from = 0;       ///< kStream: b.
  std::uintptr_t scaled = 0;     ///< kStream: c.
  std::uint64_t num_floats = 0;  ///< kStream: of each buffer, a multiple of 4.
  std::uint32_t num_passes = 1;  ///< kGemm: what each thread repeats.
};

/// One thread at a time. The owner quiesces the streams before it destroys the launcher.
class CoRunLauncher {
 public:
  virtual ~CoRunLauncher() = default;
  /// Number of threads in a launch of kGemm; each writes one result.
  [[nodiscard]] virtual std::uint32_t num_threads() const = 0;
  /// Submits one launch. `stream` belongs to the device. Throws DeviceError.
  virtual void launch(Stream& stream, CoRunKind kind, const CoRunLaunch& launch) = 0;

  /// Number of floating-point operations in a launch of kGemm.
  [[nodiscard]] std::uint64_t num_flop(std::uint32_t num_passes) const;
  /// The result of each thread of kGemm, after one or more passes.
  [[nodiscard]] static float gemm_result();
  /// The result of kStream for one element of b and one of c.
  [[nodiscard]] static float stream_result(float b, float c);
};

/// On the host back end the work runs on the stream's thread, on other back ends as kernels on
/// every multiprocessor. Throws DeviceError if the build has no kernels for the device. The device
/// outlives the launcher.
[[nodiscard]] std::unique_ptr<CoRunLauncher> make_co_run_launcher(Device& device);

}  // namespace kvferry::gpu
