// SPDX-License-Identifier: Apache-2.0
// A request computes blocks of KV cache, kvferry stores them, the engine's pool is overwritten, and
// a second request with the same beginning has them loaded instead of computed. No GPU, no engine.
// Ends with 0 if every byte came back.

#include "kvferry/base/error.hpp"
#include "kvferry/connector/scheduler/scheduler_engine.hpp"
#include "kvferry/connector/worker/worker_engine.hpp"
#include "kvferry/gpu/host_link.hpp"

#include "toy_engine.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace {

using kvferry::BlockId;
using kvferry::connector::SchedulerEngine;
using kvferry::connector::SchedulerOptions;
using kvferry::connector::WorkerEngine;
using kvferry::connector::WorkerOptions;
using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kPoolBlocks = 64;
constexpr std::uint32_t kTierBlocks = 256;
constexpr std::uint32_t kPromptBlocks = 24;

/// Decides what is stored and loaded: in an engine's scheduler process.
std::unique_ptr<SchedulerEngine> make_scheduler() {
  SchedulerOptions options;
  options.domain = kvferry::connector::DomainId(1);
  options.world_size = 1;
  options.hash_tokens = kBlockTokens;
  options.num_blocks = kPoolBlocks;
  options.classes = {{.slots_per_chunk = 1, .slot_bytes = {kBlockBytes}}};
  options.max_chunks = kTierBlocks;
  return std::make_unique<SchedulerEngine>(std::move(options));
}

/// Copies: one in each worker process. On an NVIDIA GPU the device would be make_cuda_device(0).
std::unique_ptr<WorkerEngine> make_worker(const KvCache& cache) {
  kvferry::gpu::HostLinkOptions link;  // a slow link, so that copies take their time
  link.h2d_bytes_per_second = link.d2h_bytes_per_second = 2e9;
  link.latency = std::chrono::microseconds(10);
  WorkerOptions options;
  options.num_chunks = kTierBlocks;
  options.transfer.staging_bytes = kPromptBlocks * kBlockBytes;
  return std::make_unique<WorkerEngine>(kvferry::gpu::make_host_device(link), cache.geometry(),
                                        options);
}

/// The two sides and what travels between them: bytes, by any means.
struct Pair {
  KvCache cache{kPoolBlocks};
  std::unique_ptr<SchedulerEngine> scheduler = make_scheduler();
  std::unique_ptr<WorkerEngine> worker = make_worker(cache);

  /// One step of an engine; `forward` computes. Returns the requests whose load has ended.
  template <class Forward>
  std::vector<std::string> step(Forward forward) {
    const std::string plan = scheduler->finish_plan();
    worker->bind(std::as_bytes(std::span(plan)), 0);
    forward();
    worker->save(0);
    const bool all_loads_succeeded = worker->collect().empty();
    if (!all_loads_succeeded) throw kvferry::DeviceError("a load failed");
    const std::string report = worker->take_report();
    const std::span<const std::byte> bytes = std::as_bytes(std::span(report));
    return scheduler->fold(std::span(&bytes, report.empty() ? 0 : 1)).ended;
  }
};

std::vector<BlockId> table_of(std::uint32_t first, std::uint32_t count) {
  std::vector<BlockId> table;
  for (std::uint32_t i = 0; i < count; ++i) table.emplace_back(first + i);
  return table;
}

/// A request computes its prompt. Its blocks are the engine's again when this returns.
void store(Pair& pair, const std::vector<std::uint64_t>& contents) {
  const auto num_blocks = static_cast<std::uint32_t>(contents.size());
  const std::vector<BlockId> table = table_of(1, num_blocks);
  pair.scheduler->on_request("first", std::make_shared<RequestHashes>(contents));
  pair.scheduler->on_scheduled("first", kvferry::connector::TableUpdate::kReplace, table, 0,
                               num_blocks * kBlockTokens);
  static_cast<void>(pair.step([&] {
    for (std::size_t i = 0; i < table.size(); ++i) pair.cache.compute(table[i], contents[i]);
  }));
  pair.scheduler->on_finished("first");
  pair.cache.overwrite();  // at once, though the copies still run: they read the staging ring
  while (pair.scheduler->snapshot().num_stores_in_flight != 0) {
    static_cast<void>(pair.step([] {}));
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

/// A request with the same prompt and one token more. Returns how many tokens were loaded into
/// `table`.
std::uint32_t load(Pair& pair, const std::vector<std::uint64_t>& contents,
                   const std::vector<BlockId>& table) {
  pair.scheduler->on_request("second", std::make_shared<RequestHashes>(contents));
  const auto num_tokens = static_cast<std::uint32_t>(contents.size()) * kBlockTokens + 1;
  const std::uint32_t num_found = pair.scheduler->lookup("second", 0, num_tokens).value_or(0);
  if (num_found == 0) return 0;
  pair.scheduler->on_allocated("second", table, num_found);
  // An engine runs other requests meanwhile.
  while (pair.step([] {}).empty()) std::this_thread::sleep_for(std::chrono::microseconds(100));
  pair.scheduler->on_finished("second");
  return num_found;
}

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

int run() {
  Pair pair;
  static_cast<void>(pair.step([] {}));  // the worker registers
  std::printf("tier: %u blocks of %llu KiB on %s\n", pair.scheduler->num_slots(),
              static_cast<unsigned long long>(kBlockBytes >> 10),
              pair.worker->device_description().c_str());

  std::vector<std::uint64_t> contents;
  for (std::uint64_t i = 0; i < kPromptBlocks; ++i) contents.push_back(1000 + i);
  Clock::time_point start = Clock::now();
  store(pair, contents);
  std::printf(
      "computed and stored: %llu blocks in %.1f ms; the engine had its blocks back at once\n",
      static_cast<unsigned long long>(pair.scheduler->snapshot().stored),
      milliseconds_since(start));

  const std::vector<BlockId> table = table_of(30, kPromptBlocks + 1);
  start = Clock::now();
  const std::uint32_t num_tokens = load(pair, contents, table);
  std::printf("loaded: %u of %u tokens in %.1f ms into other blocks\n", num_tokens,
              kPromptBlocks * kBlockTokens + 1, milliseconds_since(start));

  std::uint32_t num_right = 0;
  for (std::uint32_t i = 0; i < kPromptBlocks; ++i) {
    if (pair.cache.holds(table[i], contents[i])) ++num_right;
  }
  const bool ok = num_right == kPromptBlocks && num_tokens == kPromptBlocks * kBlockTokens;
  std::printf("%s: %u of %u blocks came back byte for byte\n", ok ? "ok" : "WRONG", num_right,
              kPromptBlocks);
  pair.worker->close();
  return ok ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const std::exception& error) {  // kvferry::Error says what to do
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
