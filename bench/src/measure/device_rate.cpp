// SPDX-License-Identifier: Apache-2.0
#include "measure/device_rate.hpp"

#include "measure/co_run.hpp"
#include "measure/samples.hpp"
#include "measure/wait_for.hpp"

namespace kvferry::bench {
namespace {

constexpr int kWarmUp = 2;
constexpr int kIterations = 10;
constexpr double kBytesPerUsOfOneGbPerS = 1e3;

}  // namespace

double measure_device_rate(Bench& bench) {
  const auto work = make_co_runner(bench.device, gpu::CoRunKind::kStream);
  const auto stream = bench.device.create_stream();
  const auto begin = bench.device.create_event();
  const auto end = bench.device.create_event();
  Samples times;
  for (int i = 0; i < kWarmUp + kIterations; ++i) {
    stream->record(*begin);
    work->submit(*stream);
    stream->record(*end);
    wait_for(*end);
    if (i >= kWarmUp) times.add(end->elapsed_since(*begin));
  }
  if (!work->verify())
    throw DeviceError("the triad that measures the device's memory has wrong results");
  return static_cast<double>(work->bytes_per_iteration()) / times.percentile_us(0.5) /
         kBytesPerUsOfOneGbPerS;
}

}  // namespace kvferry::bench
