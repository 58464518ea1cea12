// SPDX-License-Identifier: Apache-2.0
#include "measure/co_run.hpp"

#include "kvferry/gpu/cuda_device.hpp"
#include "kvferry/gpu/hip_device.hpp"
#include "kvferry/gpu/host_link.hpp"

#include "fake_control.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>

namespace kvferry::bench {
namespace {

using std::chrono::microseconds;

constexpr std::chrono::seconds kBound{30};
constexpr CoRunOptions kTiny{microseconds(300), microseconds(50), std::uint64_t{64} << 10U};

std::unique_ptr<gpu::Device> open(gpu::BackendKind kind) {
  switch (kind) {
    case gpu::BackendKind::kCuda:
      return gpu::make_cuda_device(
          0, {.library = KVFERRY_FAKE_CUDA, .kernel_image = fakes::kFakeImage});
    case gpu::BackendKind::kHip:
      return gpu::make_hip_device(0,
                                  {.library = KVFERRY_FAKE_HIP, .kernel_image = fakes::kFakeImage});
    case gpu::BackendKind::kHost:
      break;
  }
  return gpu::make_host_device();
}

class CoRunTest : public testing::TestWithParam<gpu::BackendKind> {
 protected:
  const std::unique_ptr<gpu::Device> device_ = open(GetParam());
  const std::unique_ptr<gpu::Stream> stream_ = device_->create_stream();
};

TEST_P(CoRunTest, IterationsTakeTheirPlaceInTheStreamAndComeToTheRightResults) {
  for (const gpu::CoRunKind kind : {gpu::CoRunKind::kGemm, gpu::CoRunKind::kStream}) {
    const auto work = make_co_runner(*device_, kind, kTiny);
    EXPECT_EQ(work->kind(), kind);
    EXPECT_TRUE(work->description().starts_with(to_string(kind))) << work->description();
    const auto begin = device_->create_event();
    const auto end = device_->create_event();
    stream_->record(*begin);
    for (int i = 0; i < 3; ++i) work->submit(*stream_);
    stream_->record(*end);
    ASSERT_EQ(end->wait(kBound), gpu::EventState::kDone) << end->failure();
    EXPECT_GT(end->elapsed_since(*begin).count(), 0);
    EXPECT_TRUE(work->verify()) << to_string(kind);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, CoRunTest,
                         testing::Values(gpu::BackendKind::kHost, gpu::BackendKind::kCuda,
                                         gpu::BackendKind::kHip),
                         [](const auto& test) { return std::string(to_string(test.param)); });

TEST(CoRunKindTest, NamesGoBothWays) {
  for (const gpu::CoRunKind kind : {gpu::CoRunKind::kGemm, gpu::CoRunKind::kStream}) {
    EXPECT_EQ(co_run_kind_from(to_string(kind)), kind);
  }
  EXPECT_THROW(static_cast<void>(co_run_kind_from("chess")), ConfigError);
}

}  // namespace
}  // namespace kvferry::bench
