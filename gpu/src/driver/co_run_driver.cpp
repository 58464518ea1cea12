// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/check.hpp"

#include "co_run_launchers.hpp"
#include "driver/driver_device.hpp"
#include "driver/driver_scope.hpp"
#include "driver/driver_stream.hpp"
#include "kernels/co_run_work.hpp"

#include <algorithm>

namespace kvferry::gpu {
namespace {

constexpr std::uint32_t kThreadsPerCta = 256;
// These are whole waves both with 2,048 threads per multiprocessor (8 CTAs, three waves) and with
// 1,536 (6, four waves). So no CTA of another stream fits in before one of these ends, and none
// runs alone at the end.
constexpr std::uint32_t kCtasPerMultiprocessor = 24;

const char* kernel_of(CoRunKind kind) {
  return kind == CoRunKind::kGemm ? "kvferry_co_run_gemm" : "kvferry_co_run_stream";
}

class DriverCoRunLauncher final : public CoRunLauncher {
 public:
  explicit DriverCoRunLauncher(DriverContext& context)
      : context_(context),
        num_ctas_(
            static_cast<std::uint32_t>(std::max(context.api().traits().num_multiprocessors, 1)) *
            kCtasPerMultiprocessor) {}

  [[nodiscard]] std::uint32_t num_threads() const override { return num_ctas_ * kThreadsPerCta; }

  void launch(Stream& stream, CoRunKind kind, const CoRunLaunch& launch) override {
    auto* const driver_stream = dynamic_cast<DriverStream*>(&stream);
    KVFERRY_CHECK(driver_stream != nullptr, "co-run work for the stream of another device");
    const char* const name = kernel_of(kind);
    const DriverScope scope(context_);
    context_.throw_if_lost();
    const FunctionHandle function = context_.pack().kernels().function(name, 0);
    const LaunchShape shape{{num_ctas_, 1, 1}, {kThreadsPerCta, 1, 1}, 0};
    CoRunArguments arguments{launch.to, launch.from, launch.scaled, launch.num_floats,
                             launch.num_passes};
    context_.check(
        context_.api().launch(function, shape, &arguments, driver_stream->native_handle()), name);
    driver_stream->note_foreign_work();
  }

 private:
  DriverContext& context_;
  const std::uint32_t num_ctas_;
};

}  // namespace

std::unique_ptr<CoRunLauncher> make_driver_co_run_launcher(DriverDevice& device) {
  return std::make_unique<DriverCoRunLauncher>(device.context());
}

}  // namespace kvferry::gpu
