// SPDX-License-Identifier: Apache-2.0
#include "measure/co_run.hpp"

#include "kvferry/base/error.hpp"

#include "measure/co_run_sample.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

namespace kvferry::bench {
namespace {

using std::chrono::nanoseconds;

constexpr std::array<gpu::CoRunKind, 2> kKinds = {gpu::CoRunKind::kGemm, gpu::CoRunKind::kStream};
// Every byte of b and of c has one of these values. As floats they are about 0.75 and 3.0.
constexpr std::uint8_t kFromByte = 0x3f;
constexpr std::uint8_t kScaledByte = 0x40;
// The floats that a launch uses of a buffer start at a multiple of this.
constexpr std::uint64_t kWindowFloats = 1024;
constexpr std::uint32_t kMostPasses = 1U << 24U;
// The number of launches that are timed together.
constexpr std::uint32_t kTimedLaunches = 4;
constexpr std::chrono::minutes kHangs{1};

double ratio(nanoseconds wanted, nanoseconds measured) {
  return static_cast<double>(wanted.count()) /
         static_cast<double>(std::max<nanoseconds::rep>(measured.count(), 1));
}

class SizedCoRunner final : public CoRunner {
 public:
  SizedCoRunner(gpu::Device& device, gpu::CoRunKind kind, const CoRunOptions& options)
      : kind_(kind),
        launcher_(gpu::make_co_run_launcher(device)),
        buffer_floats_(
            kind == gpu::CoRunKind::kGemm
                ? launcher_->num_threads()
                : std::max(options.buffer_bytes / sizeof(float) / kWindowFloats, std::uint64_t{1}) *
                      kWindowFloats),
        sample_(device) {
    const std::size_t num_buffers = kind == gpu::CoRunKind::kGemm ? 1 : 3;
    for (std::size_t i = 0; i < num_buffers; ++i) {
      buffers_.push_back(device.allocate(buffer_floats_ * sizeof(float)));
    }
    const std::unique_ptr<gpu::Stream> stream = device.create_stream();
    begin_ = device.create_event();
    end_ = device.create_event();
    arguments_.to = buffers_[0]->address();
    window_floats_ = buffer_floats_;
    if (kind == gpu::CoRunKind::kStream) {
      stream->fill(buffers_[1]->address(), kFromByte, buffers_[1]->size_bytes());
      stream->fill(buffers_[2]->address(), kScaledByte, buffers_[2]->size_bytes());
    }
    size(*stream, options);
  }

  [[nodiscard]] gpu::CoRunKind kind() const override { return kind_; }

  void submit(gpu::Stream& stream) override {
    for (std::uint32_t i = 0; i < num_launches_; ++i) launch(stream);
  }

  [[nodiscard]] std::uint64_t bytes_per_iteration() const override {
    return kind_ == gpu::CoRunKind::kGemm ? 0 : num_launches_ * 3 * window_floats_ * sizeof(float);
  }

  [[nodiscard]] bool verify() override {
    float expected = gpu::CoRunLauncher::gemm_result();
    if (kind_ == gpu::CoRunKind::kStream) {
      expected = gpu::CoRunLauncher::stream_result(sample_.of_byte(kFromByte),
                                                   sample_.of_byte(kScaledByte));
    }
    return sample_.all_are(buffers_[0]->address(), buffer_floats_, expected);
  }

  [[nodiscard]] std::string description() const override {
    const std::string launches = std::string(to_string(kind_)) + ": " +
                                 std::to_string(num_launches_) + " launches an iteration, each of ";
    if (kind_ == gpu::CoRunKind::kStream) {
      return launches + std::to_string(3 * window_floats_ * sizeof(float)) +
             " bytes of device memory";
    }
    return launches + std::to_string(launcher_->num_flop(arguments_.num_passes)) +
           " multiply-add FLOP on " + std::to_string(launcher_->num_threads()) +
           " threads (no tensor cores)";
  }

 private:
  /// Submits the next launch. The windows of a stream follow one another through the buffers.
  void launch(gpu::Stream& stream) {
    gpu::CoRunLaunch arguments = arguments_;
    if (kind_ == gpu::CoRunKind::kStream) {
      if (next_float_ + window_floats_ > buffer_floats_) next_float_ = 0;
      const std::uint64_t offset = next_float_ * sizeof(float);
      arguments.to = buffers_[0]->address() + offset;
      arguments.from = buffers_[1]->address() + offset;
      arguments.scaled = buffers_[2]->address() + offset;
      arguments.num_floats = window_floats_;
      next_float_ += window_floats_;
    }
    launcher_->launch(stream, kind_, arguments);
  }

  /// Chooses the size of a launch, then the number of launches. The first launches, which load the
  /// kernels and write all of the results once, do not count.
  void size(gpu::Stream& stream, const CoRunOptions& options) {
    static_cast<void>(time_launches(stream));
    nanoseconds once = time_launches(stream);
    if (kind_ == gpu::CoRunKind::kGemm) {
      while (once < options.launch && arguments_.num_passes < kMostPasses) {
        const double factor = std::clamp(ratio(options.launch, once), 1.1, 8.0);
        arguments_.num_passes =
            static_cast<std::uint32_t>(std::ceil(arguments_.num_passes * factor));
        once = time_launches(stream);
      }
    } else {
      const auto floats = static_cast<std::uint64_t>(static_cast<double>(buffer_floats_) *
                                                     std::min(ratio(options.launch, once), 1.0));
      window_floats_ =
          std::clamp(floats / kWindowFloats * kWindowFloats, kWindowFloats, buffer_floats_);
      once = time_launches(stream);
    }
    num_launches_ =
        static_cast<std::uint32_t>(std::max(std::lround(ratio(options.iteration, once)), 1L));
  }

  nanoseconds time_launches(gpu::Stream& stream) {
    stream.record(*begin_);
    for (std::uint32_t i = 0; i < kTimedLaunches; ++i) launch(stream);
    stream.record(*end_);
    if (end_->wait(kHangs) != gpu::EventState::kDone) {
      throw DeviceError("the co-run work does not end: " + end_->failure());
    }
    return end_->elapsed_since(*begin_) / kTimedLaunches;
  }

  const gpu::CoRunKind kind_;
  const std::unique_ptr<gpu::CoRunLauncher> launcher_;
  const std::uint64_t buffer_floats_;
  CoRunSample sample_;
  std::vector<std::unique_ptr<gpu::DeviceBuffer>> buffers_;
  std::unique_ptr<gpu::Event> begin_;
  std::unique_ptr<gpu::Event> end_;
  gpu::CoRunLaunch arguments_;
  std::uint64_t window_floats_ = 0;
  std::uint64_t next_float_ = 0;
  std::uint32_t num_launches_ = 1;
};

}  // namespace

const char* to_string(gpu::CoRunKind kind) {
  return kind == gpu::CoRunKind::kGemm ? "gemm" : "stream";
}

gpu::CoRunKind co_run_kind_from(std::string_view name) {
  for (const gpu::CoRunKind kind : kKinds) {
    if (name == to_string(kind)) return kind;
  }
  throw ConfigError("co-run '" + std::string(name) + "' is unknown; known are: gemm, stream");
}

std::unique_ptr<CoRunner> make_co_runner(gpu::Device& device, gpu::CoRunKind kind,
                                         const CoRunOptions& options) {
  return std::make_unique<SizedCoRunner>(device, kind, options);
}

}  // namespace kvferry::bench
