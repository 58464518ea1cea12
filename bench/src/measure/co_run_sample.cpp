// SPDX-License-Identifier: Apache-2.0
#include "measure/co_run_sample.hpp"

#include "kvferry/base/error.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>

namespace kvferry::bench {
namespace {

constexpr std::chrono::minutes kHangs{1};
constexpr float kTolerance = 1e-6F;

}  // namespace

CoRunSample::CoRunSample(gpu::Device& device)
    : page_(std::make_unique<Page>()),
      registration_(device.register_host(page_.get(), sizeof(Page))),
      stream_(device.create_stream()),
      copied_(device.create_event()) {}

bool CoRunSample::all_are(std::uintptr_t address, std::uint64_t num_floats, float expected) {
  const std::uint64_t count = std::min<std::uint64_t>(num_floats, page_->floats.size());
  for (const std::uint64_t first :
       {std::uint64_t{0}, (num_floats - count) / 2, num_floats - count}) {
    const gpu::CopyRun run{registration_->device_address(), address + first * sizeof(float),
                           count * sizeof(float)};
    stream_->copy(gpu::CopyDirection::kDeviceToHost, {&run, 1});
    stream_->record(*copied_);
    if (copied_->wait(kHangs) != gpu::EventState::kDone) {
      throw DeviceError("the co-run work's results cannot be read: " + copied_->failure());
    }
    const float* const begin = page_->floats.data();
    if (!std::all_of(begin, begin + count, [=](float found) {
          return std::abs(found - expected) <= kTolerance * std::abs(expected);
        })) {
      return false;
    }
  }
  return true;
}

float CoRunSample::of_byte(std::uint8_t byte) {
  return std::bit_cast<float>(std::uint32_t{0x01010101} * byte);
}

}  // namespace kvferry::bench
