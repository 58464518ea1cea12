// SPDX-License-Identifier: Apache-2.0
#include "facts.hpp"

#include <chrono>
#include <cstring>
#include <filesystem>
#include <regex>

namespace kvferry::smoke {
namespace {

using gpu::CopyDirection;
using gpu::CopyRun;
constexpr std::size_t kPiece = SmokeDevice::kPiece;
constexpr std::size_t kRun = 8192;
using Clock = std::chrono::steady_clock;

void write_pattern(SmokeDevice& device) {
  const auto host = device.host();
  for (std::size_t i = 0; i < kPiece; ++i) host[i] = byte_at(i);
}

Fact judged(SmokeDevice& device, Fact otherwise) {
  const std::string wrong = first_wrong(device.host().first(kPiece));
  return wrong.empty() ? otherwise : Fact{false, wrong, 0, ""};
}

/// Run `i` of a batch lies elsewhere on the other side.
std::vector<CopyRun> scattered(const SmokeDevice& device, std::size_t count, CopyDirection way) {
  std::vector<CopyRun> runs;
  constexpr std::size_t kPlaces = kPiece / kRun;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uintptr_t on_device = device.memory() + i % kPlaces * kRun;
    const std::uintptr_t on_host = device.alias() + i * 341 % kPlaces * kRun;
    runs.push_back(way == CopyDirection::kHostToDevice ? CopyRun{on_device, on_host, kRun}
                                                       : CopyRun{on_host, on_device, kRun});
  }
  return runs;
}

Fact copy_both_ways(SmokeDevice& device) {
  const auto stream = device.make_stream();
  write_pattern(device);
  const CopyRun in = {device.memory(), device.alias(), kPiece};
  const CopyRun out = {device.alias(), device.memory(), kPiece};
  device.require(device.api().copy(CopyDirection::kHostToDevice, in, stream), "copy in");
  device.settle(stream);
  std::memset(device.host().data(), 0, kPiece);
  device.require(device.api().copy(CopyDirection::kDeviceToHost, out, stream), "copy out");
  device.settle(stream);
  return judged(device, {true, "every byte right", 0, ""});
}

Fact copy_rate(SmokeDevice& device, CopyDirection way, int rounds) {
  const auto stream = device.make_stream();
  const CopyRun run = way == CopyDirection::kHostToDevice
                          ? CopyRun{device.memory(), device.alias(), kPiece}
                          : CopyRun{device.alias(), device.memory(), kPiece};
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < rounds; ++i) {
    device.require(device.api().copy(way, run, stream), "copy");
  }
  device.settle(stream);
  const std::chrono::duration<double> took = Clock::now() - begin;
  return {true, "copies of 4 MiB", rounds * double{kPiece} / took.count() / 1e9, "GB/s"};
}

Fact batch_both_ways(SmokeDevice& device) {
  if (device.api().traits().max_batch_runs == 0) return {true, "the driver has none", 0, ""};
  const auto stream = device.make_stream();
  write_pattern(device);
  auto runs = scattered(device, kPiece / kRun, CopyDirection::kHostToDevice);
  device.require(device.api().copy_batch(CopyDirection::kHostToDevice, runs, stream), "batch in");
  device.settle(stream);
  std::memset(device.host().data(), 0, kPiece);
  runs = scattered(device, kPiece / kRun, CopyDirection::kDeviceToHost);
  device.require(device.api().copy_batch(CopyDirection::kDeviceToHost, runs, stream), "batch out");
  device.settle(stream);
  return judged(device, {true, "every byte right", 0, ""});
}

// vllm#49276: many batches in a row ended in a fault.
Fact many_batches(SmokeDevice& device, int count) {
  if (device.api().traits().max_batch_runs == 0) return {true, "the driver has none", 0, ""};
  const auto stream = device.make_stream();
  const auto runs = scattered(device, 64, CopyDirection::kHostToDevice);
  for (int i = 0; i < count; ++i) {
    device.require(device.api().copy_batch(CopyDirection::kHostToDevice, runs, stream),
                   "make batch " + std::to_string(i));
    if (i % 8 == 7) device.settle(stream);
  }
  device.settle(stream);
  return {true, "batches of 64 scattered copies", static_cast<double>(count), "batches"};
}

/// "0000:c1:00.0".
bool is_sysfs_address(const std::string& text) {
  static const std::regex kForm("[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\\.[0-7]");
  return std::regex_match(text, kForm);
}

/// What our rules forbid: a driver that takes it is no fault.
Fact refusal(SmokeDevice& device, const gpu::DriverResult& result) {
  return {true, result.ok() ? "is taken" : "is refused: " + device.api().describe(result.code), 0,
          "", true};
}

}  // namespace

void settle_device(FactLog& log, SmokeDevice& device, Effort /*effort*/) {
  log.check("device", [&] {
    const gpu::DriverTraits& traits = device.api().traits();
    return Fact{true, traits.device_name + ", " + traits.architecture + ", " + traits.driver, 0,
                ""};
  });
  log.check("F5 bus id as sysfs writes it", [&] {
    const std::string address = device.api().traits().pci_address.value_or("");
    const bool in_sysfs = std::filesystem::exists("/sys/bus/pci/devices/" + address);
    return Fact{is_sysfs_address(address),
                "the driver says " + device.raw_bus_id() + ", we say " + address +
                    (in_sysfs ? ", and sysfs has it" : ", and sysfs here does not show it"),
                0, ""};
  });
  log.check("F7 priorities of streams", [&] {
    const auto range = device.require(device.api().stream_priorities(), "ask for them");
    return Fact{true,
                "from " + std::to_string(range.least) + " to " + std::to_string(range.greatest), 0,
                "", true};
  });
  log.check("two neighbouring registrations", [&] {
    device.make_memory();
    const bool same = device.alias() == reinterpret_cast<std::uintptr_t>(device.host().data());
    return Fact{true,
                same ? "the device knows them by the host's address"
                     : "the device knows them by another address",
                0, ""};
  });
}

void settle_copies(FactLog& log, SmokeDevice& device, Effort effort) {
  const bool quick = effort == Effort::kQuick;
  const int rounds = quick ? 2 : 1000;
  device.make_memory();
  log.check("copy in and out", [&] { return copy_both_ways(device); });
  log.check("rate in", [&] { return copy_rate(device, CopyDirection::kHostToDevice, rounds); });
  log.check("rate out", [&] { return copy_rate(device, CopyDirection::kDeviceToHost, rounds); });
  log.check("F10 batch in and out", [&] { return batch_both_ways(device); });
  log.check("F10 many batches", [&] { return many_batches(device, quick ? 50 : 2000); });
}

void settle_legacy(FactLog& log, SmokeDevice& device, Effort /*effort*/) {
  device.make_memory();
  log.check("a batch on the legacy default stream", [&] {
    if (device.api().traits().max_batch_runs == 0) return Fact{true, "the driver has none", 0, ""};
    const auto runs = scattered(device, 4, CopyDirection::kHostToDevice);
    return refusal(
        device, device.api().copy_batch(CopyDirection::kHostToDevice, runs, gpu::StreamHandle{}));
  });
}

void settle_border(FactLog& log, SmokeDevice& device, Effort /*effort*/) {
  device.make_memory();
  log.check("a copy over the border of two registrations", [&] {
    const auto stream = device.make_stream();
    const CopyRun run = {device.memory(), device.alias() + kPiece - 4096, 8192};
    const auto result = device.api().copy(CopyDirection::kHostToDevice, run, stream);
    if (result.ok()) device.settle(stream);
    return refusal(device, result);
  });
}

}  // namespace kvferry::smoke
