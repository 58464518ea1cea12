// SPDX-License-Identifier: Apache-2.0
// What is for bench/ only: launches of co-run work, and copies of memory that is not registered.
#include "kvferry/gpu/co_run_launcher.hpp"
#include "kvferry/gpu/cuda_device.hpp"
#include "kvferry/gpu/hip_device.hpp"
#include "kvferry/gpu/host_link.hpp"
#include "kvferry/gpu/pageable_copy.hpp"

#include "fake_control.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <vector>

namespace kvferry::gpu {
namespace {

constexpr std::chrono::seconds kBound{30};

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

class BenchWorkTest : public testing::TestWithParam<BackendKind> {
 protected:
  const std::unique_ptr<Device> device_ = open(GetParam());
  const std::unique_ptr<Stream> stream_ = device_->create_stream();
};

TEST_P(BenchWorkTest, LaunchesComeToTheResultsThatTheyPromise) {
  const auto launcher = make_co_run_launcher(*device_);
  constexpr std::uint64_t kNumFloats = 1024;
  const std::uint64_t num_floats = std::max<std::uint64_t>(launcher->num_threads(), kNumFloats);
  std::vector<std::unique_ptr<DeviceBuffer>> buffers;
  for (int i = 0; i < 3; ++i) buffers.push_back(device_->allocate(num_floats * sizeof(float)));
  std::vector<float> found(num_floats);
  const auto read = [&] {
    copy_pageable(*device_, *stream_, CopyDirection::kDeviceToHost,
                  {reinterpret_cast<std::uintptr_t>(found.data()), buffers[0]->address(),
                   num_floats * sizeof(float)});
    return stream_->synchronize(kBound);
  };
  launcher->launch(*stream_, CoRunKind::kGemm, {.to = buffers[0]->address(), .num_passes = 2});
  ASSERT_TRUE(read());
  EXPECT_EQ(std::count(found.begin(), found.begin() + launcher->num_threads(),
                       CoRunLauncher::gemm_result()),
            launcher->num_threads());
  EXPECT_EQ(launcher->num_flop(4), 2 * launcher->num_flop(2));
  // 0x3f3f3f3f is about 0.75, 0x40404040 about 3.
  stream_->fill(buffers[1]->address(), 0x3f, buffers[1]->size_bytes());
  stream_->fill(buffers[2]->address(), 0x40, buffers[2]->size_bytes());
  launcher->launch(*stream_, CoRunKind::kStream,
                   {.to = buffers[0]->address(),
                    .from = buffers[1]->address(),
                    .scaled = buffers[2]->address(),
                    .num_floats = kNumFloats});
  ASSERT_TRUE(read());
  const float expected = CoRunLauncher::stream_result(std::bit_cast<float>(0x3f3f3f3fU),
                                                      std::bit_cast<float>(0x40404040U));
  for (std::uint64_t i = 0; i < kNumFloats; ++i) ASSERT_FLOAT_EQ(found[i], expected) << i;
}

TEST_P(BenchWorkTest, PageableBytesArriveInTheOrderOfTheStream) {
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

INSTANTIATE_TEST_SUITE_P(Devices, BenchWorkTest,
                         testing::Values(BackendKind::kHost, BackendKind::kCuda, BackendKind::kHip),
                         [](const auto& test) { return std::string(to_string(test.param)); });

}  // namespace
}  // namespace kvferry::gpu
