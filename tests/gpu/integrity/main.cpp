// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/error.hpp"
#include "kvferry/base/mutex.hpp"

#include "lane.hpp"
#include "options.hpp"
#include "test_backend.hpp"

#include <atomic>
#include <chrono>
#include <exception>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <sstream>
#include <thread>
#include <vector>

namespace kvferry::integrity {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kProgress{10};
constexpr std::chrono::milliseconds kLook{20};
/// Each lane makes so many however slow the machine is, so that a short run proves something too.
constexpr std::uint64_t kLeastCycles = 30;

struct Sums {
  std::uint64_t cycles = 0;
  std::uint64_t stores = 0;
  std::uint64_t loads = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t stored_bytes = 0;
  std::uint64_t loaded_bytes = 0;
  std::uint64_t verified_bytes = 0;
};

/// All lanes of one run. The first error stops them all.
class Run {
 public:
  explicit Run(const Options& options)
      : options_(options), device_(gpu::make_test_device(options.backend)) {
    for (std::uint32_t i = 0; i < options.threads; ++i) {
      lanes_.push_back(std::make_unique<Lane>(
          *device_, LaneOptions{.seed = options.seed + i,
                                .number = i,
                                .max_block_bytes = options.max_block_kib << 10U,
                                .pool_bytes = options.pool_mib << 20U,
                                .sabotage = options.sabotage}));
    }
  }

  /// The error; empty if every byte was right.
  [[nodiscard]] std::string run() {
    std::cout << "kvferry-integrity: " << device_->description() << "; seed " << options_.seed
              << ", " << options_.threads << " threads, " << options_.seconds << " s" << std::endl;
    const Clock::time_point start = Clock::now();
    const Clock::time_point end = start + std::chrono::seconds(options_.seconds);
    std::vector<std::thread> threads;
    for (const auto& lane : lanes_) {
      threads.emplace_back([this, &lane, end] { serve(*lane, end); });
    }
    Clock::time_point next_line = start + kProgress;
    while (num_ended_ < lanes_.size()) {
      std::this_thread::sleep_for(kLook);
      if (Clock::now() < next_line) continue;
      next_line += kProgress;
      say_progress(std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - start));
    }
    for (std::thread& thread : threads) thread.join();
    MutexLock lock(mutex_);
    return error_;
  }

  [[nodiscard]] Sums sums() const {
    Sums sums;
    for (const auto& lane : lanes_) {
      const LaneCounts& counts = lane->counts();
      sums.cycles += counts.cycles;
      sums.stores += counts.stores;
      sums.loads += counts.loads;
      sums.cancelled += counts.cancelled;
      sums.stored_bytes += counts.stored_bytes;
      sums.loaded_bytes += counts.loaded_bytes;
      sums.verified_bytes += counts.verified_bytes;
    }
    return sums;
  }
  [[nodiscard]] std::string device() const { return device_->description(); }

 private:
  void serve(Lane& lane, Clock::time_point end) {
    try {
      while ((Clock::now() < end || lane.counts().cycles < kLeastCycles) && !stop_) lane.step();
      if (!stop_) lane.drain();
    } catch (const std::exception& error) {
      stop_ = true;
      MutexLock lock(mutex_);
      if (error_.empty()) error_ = error.what();
    }
    ++num_ended_;
  }

  void say_progress(std::chrono::seconds age) const {
    const Sums now = sums();
    std::cout << age.count() << " s: " << now.cycles << " cycles, " << (now.stored_bytes >> 20U)
              << " MiB stored, " << (now.loaded_bytes >> 20U) << " MiB loaded, "
              << (now.verified_bytes >> 20U) << " MiB verified" << std::endl;
  }

  const Options options_;
  std::unique_ptr<gpu::Device> device_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::atomic<bool> stop_{false};
  std::atomic<std::size_t> num_ended_{0};
  Mutex mutex_;
  std::string error_ KVFERRY_GUARDED_BY(mutex_);
};

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c == '\n' ? ' ' : c;
  }
  return result + '"';
}

std::string json(const Options& options, const Run& run, const std::string& error) {
  const Sums sums = run.sums();
  std::ostringstream text;
  text << R"({"program": "kvferry-integrity", "backend": )" << quoted(options.backend)
       << ", \"device\": " << quoted(run.device()) << ", \"seed\": " << options.seed
       << ", \"threads\": " << options.threads << ", \"seconds\": " << options.seconds
       << ", \"cycles\": " << sums.cycles << ", \"stores\": " << sums.stores
       << ", \"loads\": " << sums.loads << ", \"cancelled\": " << sums.cancelled
       << ", \"stored_bytes\": " << sums.stored_bytes << ", \"loaded_bytes\": " << sums.loaded_bytes
       << ", \"verified_bytes\": " << sums.verified_bytes << R"(, "result": )"
       << (error.empty() ? R"("ok")" : R"("failed")") << ", \"error\": " << quoted(error) << "}";
  return text.str();
}

int run(Options options) {
  if (options.help) {
    std::cout << usage();
    return 0;
  }
  if (options.seed == 0) options.seed = std::random_device{}();
  Run run(options);
  const std::string error = run.run();
  if (!error.empty()) {
    std::cout << error << "; seed " << options.seed << ", replay with --seed " << options.seed
              << " --threads " << options.threads << " --pool-mib " << options.pool_mib
              << " --max-block-kib " << options.max_block_kib << std::endl;
  }
  const std::string line = json(options, run, error);
  std::cout << line << std::endl;
  if (!options.json.empty()) std::ofstream(options.json) << line << '\n';
  const Sums sums = run.sums();
  if (error.empty() && options.seconds > 0 && (sums.stores == 0 || sums.loads == 0)) {
    std::cout << "nothing was stored or nothing loaded: this run proves nothing" << std::endl;
    return 1;
  }
  return error.empty() ? 0 : 1;
}

}  // namespace
}  // namespace kvferry::integrity

int main(int argc, char** argv) {
  try {
    return kvferry::integrity::run(
        kvferry::integrity::parse_options(std::vector<std::string>(argv + 1, argv + argc)));
  } catch (const std::exception& error) {
    std::cerr << "kvferry-integrity: " << error.what() << '\n';
    return 2;
  }
}
