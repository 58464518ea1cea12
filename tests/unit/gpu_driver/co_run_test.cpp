// SPDX-License-Identifier: Apache-2.0
#include "kvferry/gpu/co_run.hpp"

#include "kvferry/gpu/cuda_device.hpp"
#include "kvferry/gpu/hip_device.hpp"
#include "kvferry/gpu/host_link.hpp"
#include "kvferry/gpu/pageable_copy.hpp"

#include "fake_control.hpp"

#include <gtest/gtest.h>

#include <array>

namespace kvferry::gpu {
namespace {

using std::chrono::microseconds;

constexpr std::chrono::seconds kBound{30};
constexpr CoRunOptions kTiny{microseconds(300), microseconds(50), std::uint64_t{64} << 10U};

std::unique_ptr<Device> open(BackendKind kind) {
  switch (kind) {
    case BackendKind::kCuda:
      return make_cuda_device(0, {.library = KVFERRY_FAKE_CUDA, .kernel_image = fakes::kFakeImage});
    case BackendKind::kHip:
      return make_hip_device(0, {.library = KVFERRY_FAKE_HIP, .kernel_image = fakes::kFakeImage});
    case BackendKind::kHost:
      break;
  }
  return make_host_device();
}

class CoRunTest : public testing::TestWithParam<BackendKind> {
 protected:
  const std::unique_ptr<Device> device_ = open(GetParam());
  const std::unique_ptr<Stream> stream_ = device_->create_stream();
};

TEST_P(CoRunTest, IterationsTakeTheirPlaceInTheStreamAndComeToTheRightResults) {
  for (const CoRunKind kind : {CoRunKind::kGemm, CoRunKind::kStream}) {
    const auto work = make_co_runner(*device_, kind, kTiny);
    EXPECT_EQ(work->kind(), kind);
    EXPECT_TRUE(work->description().starts_with(to_string(kind))) << work->description();
    const auto begin = device_->create_event();
    const auto end = device_->create_event();
    stream_->record(*begin);
    for (int i = 0; i < 3; ++i) work->submit(*stream_);
    stream_->record(*end);
    ASSERT_EQ(end->wait(kBound), EventState::kDone) << end->failure();
    EXPECT_GT(end->elapsed_since(*begin).count(), 0);
    EXPECT_TRUE(work->verify()) << to_string(kind);
  }
}

TEST_P(CoRunTest, PageableBytesArriveInTheOrderOfTheStream) {
  std::array<std::uint8_t, 256> sent{};
  for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::uint8_t>(i);
  std::array<std::uint8_t, 256> received{};
  const auto buffer = device_->allocate(sent.size());
  const auto host = [](auto& bytes) { return reinterpret_cast<std::uintptr_t>(bytes.data()); };
  stream_->fill(buffer->address(), 0xff, sent.size());
  copy_pageable(*device_, *stream_, CopyDirection::kHostToDevice,
                {buffer->address(), host(sent), sent.size()});
  copy_pageable(*device_, *stream_, CopyDirection::kDeviceToHost,
                {host(received), buffer->address(), sent.size()});
  ASSERT_TRUE(stream_->synchronize(kBound));
  EXPECT_EQ(received, sent);
}

INSTANTIATE_TEST_SUITE_P(Devices, CoRunTest,
                         testing::Values(BackendKind::kHost, BackendKind::kCuda, BackendKind::kHip),
                         [](const auto& test) { return std::string(to_string(test.param)); });

TEST(CoRunKindTest, NamesGoBothWays) {
  for (const CoRunKind kind : {CoRunKind::kGemm, CoRunKind::kStream}) {
    EXPECT_EQ(co_run_kind_from(to_string(kind)), kind);
  }
  EXPECT_THROW(static_cast<void>(co_run_kind_from("chess")), ConfigError);
}

}  // namespace
}  // namespace kvferry::gpu
