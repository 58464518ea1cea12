// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/mutex.hpp"

#include "host/host_context.hpp"
#include "host/host_operation.hpp"
#include "host/host_runner.hpp"

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <thread>

namespace kvferry::gpu {

/// The submitting half of both kinds of host stream: checks each call and makes an operation of it.
class HostStream : public Stream {
 public:
  explicit HostStream(HostContext& context);
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;
  ~HostStream() override;

  void record(Event& event) final;
  void wait(const Event& event) final;
  void copy(CopyDirection direction, std::span<const CopyRun> runs, CopyCall call) final;
  void gather(const BlockGeometry& geometry, std::span<const BlockId> blocks, std::uintptr_t packed,
              std::uintptr_t sums) final;
  void scatter(const BlockGeometry& geometry, std::span<const BlockId> blocks,
               std::uintptr_t packed, std::uintptr_t sums) final;
  void sum(const BlockGeometry& geometry, std::span<const BlockId> blocks,
           std::uintptr_t sums) final;
  void fill(std::uintptr_t address, std::uint8_t value, std::uint64_t bytes) final;

  /// Submits `work`, which does not throw.
  void call(std::function<void()> work);

 protected:
  /// Whether the device is lost with memory in doubt.
  [[nodiscard]] bool in_doubt() const { return context_.loss->in_doubt(); }

 private:
  virtual void submit(HostOperation operation) = 0;
  void pack(PackWay way, const BlockGeometry& geometry, std::span<const BlockId> blocks,
            std::uintptr_t packed, std::uintptr_t sums);

  HostContext& context_;
};

/// Runs each operation before the call returns.
class HostInlineStream final : public HostStream {
 public:
  explicit HostInlineStream(HostContext& context) : HostStream(context), runner_(context) {}
  [[nodiscard]] bool synchronize(std::chrono::nanoseconds bound) override;

 private:
  void submit(HostOperation operation) override;

  HostRunner runner_;
};

/// Runs its operations on a thread of its own.
class HostThreadStream final : public HostStream {
 public:
  explicit HostThreadStream(HostContext& context);
  HostThreadStream(const HostThreadStream&) = delete;
  HostThreadStream& operator=(const HostThreadStream&) = delete;
  ~HostThreadStream() override;
  [[nodiscard]] bool synchronize(std::chrono::nanoseconds bound) override;

 private:
  void submit(HostOperation operation) override;
  void serve();
  /// Waits for the next operation; nothing once the stream closes and the queue is empty.
  [[nodiscard]] std::optional<HostOperation> take();
  void count_ended();

  /// Of the stream's thread only.
  HostRunner runner_;
  Mutex mutex_;
  CondVar submitted_;
  CondVar ended_;
  std::deque<HostOperation> queue_ KVFERRY_GUARDED_BY(mutex_);
  std::uint64_t num_submitted_ KVFERRY_GUARDED_BY(mutex_) = 0;
  std::uint64_t num_ended_ KVFERRY_GUARDED_BY(mutex_) = 0;
  bool closing_ KVFERRY_GUARDED_BY(mutex_) = false;
  /// Last, so that everything that it uses is there when it starts.
  std::thread thread_;
};

}  // namespace kvferry::gpu
