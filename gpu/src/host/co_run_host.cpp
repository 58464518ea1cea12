// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/check.hpp"

#include "co_run_launchers.hpp"
#include "host/host_stream.hpp"
#include "kernels/co_run_work.hpp"

namespace kvferry::gpu {
namespace {

// As many as a few vector registers hold; one after the other they are one core's work.
constexpr std::uint32_t kThreads = 64;

float* floats(std::uintptr_t address) { return reinterpret_cast<float*>(address); }

void run(CoRunKind kind, const CoRunLaunch& launch) {
  float* const to = floats(launch.to);
  if (kind == CoRunKind::kGemm) {
    for (std::uint32_t thread = 0; thread < kThreads; ++thread) {
      to[thread] = co_run_gemm(launch.num_passes, thread);
    }
    return;
  }
  const float* const from = floats(launch.from);
  const float* const scaled = floats(launch.scaled);
  for (std::uint64_t i = 0; i < launch.num_floats; ++i) to[i] = co_run_triad(from[i], scaled[i]);
}

class HostCoRunLauncher final : public CoRunLauncher {
 public:
  [[nodiscard]] std::uint32_t num_threads() const override { return kThreads; }
  void launch(Stream& stream, CoRunKind kind, const CoRunLaunch& launch) override {
    auto* const host = dynamic_cast<HostStream*>(&stream);
    KVFERRY_CHECK(host != nullptr, "co-run work for the stream of another device");
    host->call([kind, launch] { run(kind, launch); });
  }
};

}  // namespace

std::unique_ptr<CoRunLauncher> make_host_co_run_launcher() {
  return std::make_unique<HostCoRunLauncher>();
}

}  // namespace kvferry::gpu
