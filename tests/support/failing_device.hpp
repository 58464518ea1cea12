// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"

#include "borrowed_device.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace kvferry::transfer {

/// Some copies of its own streams are refused, drawn from a seed: failures for back ends without a
/// simulated link. Views are the engine's and fail never.
class FailingDevice final : public BorrowedDevice {
 public:
  FailingDevice(gpu::Device& device, double probability, std::uint64_t seed)
      : BorrowedDevice(device),
        bound_(static_cast<std::uint64_t>(probability * 1e6)),
        seed_(seed) {}

  [[nodiscard]] std::unique_ptr<gpu::Stream> create_stream(gpu::StreamPriority priority) override {
    return std::make_unique<FailingStream>(*this, device_.create_stream(priority));
  }

 private:
  class FailingStream final : public gpu::Stream {
   public:
    FailingStream(FailingDevice& device, std::unique_ptr<gpu::Stream> stream)
        : device_(device), stream_(std::move(stream)) {}
    void record(gpu::Event& event) override { stream_->record(event); }
    void wait(const gpu::Event& event) override { stream_->wait(event); }
    void copy(gpu::CopyDirection direction, std::span<const gpu::CopyRun> runs,
              gpu::CopyCall call) override {
      if (device_.next_fails()) throw DeviceError("refused by request of the test");
      stream_->copy(direction, runs, call);
    }
    void gather(const gpu::BlockGeometry& geometry, std::span<const BlockId> blocks,
                std::uintptr_t packed, std::uintptr_t sums) override {
      stream_->gather(geometry, blocks, packed, sums);
    }
    void scatter(const gpu::BlockGeometry& geometry, std::span<const BlockId> blocks,
                 std::uintptr_t packed, std::uintptr_t sums) override {
      stream_->scatter(geometry, blocks, packed, sums);
    }
    void sum(const gpu::BlockGeometry& geometry, std::span<const BlockId> blocks,
             std::uintptr_t sums) override {
      stream_->sum(geometry, blocks, sums);
    }
    void fill(std::uintptr_t address, std::uint8_t value, std::uint64_t bytes) override {
      stream_->fill(address, value, bytes);
    }
    [[nodiscard]] bool synchronize(std::chrono::nanoseconds bound) override {
      return stream_->synchronize(bound);
    }

   private:
    FailingDevice& device_;
    std::unique_ptr<gpu::Stream> stream_;
  };

  [[nodiscard]] bool next_fails() {
    std::uint64_t x = seed_ + ++num_copies_ * 0x9e3779b97f4a7c15U;
    x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
    return (x >> 20U) % 1'000'000 < bound_;
  }

  const std::uint64_t bound_;
  const std::uint64_t seed_;
  std::atomic<std::uint64_t> num_copies_{0};
};

}  // namespace kvferry::transfer
