// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/driver_options.hpp"

#include "driver/driver_api.hpp"
#include "driver/driver_event_pool.hpp"
#include "driver/driver_pack.hpp"
#include "loss_state.hpp"
#include "registered_ranges.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace kvferry::gpu {

/// The state that all objects of one device share. Its address is the device's identity.
/// Thread-safe.
///
/// A context can be *lost*. If a call returned an error after which the driver refuses everything
/// (such as CUDA_ERROR_ILLEGAL_ADDRESS, from any cause), memory is in doubt. If a call returned
/// that the context is gone (the driver was shut down before us), memory is quiet.
class DriverContext {
 public:
  DriverContext(std::unique_ptr<DriverApi> driver, const DriverOptions& options);
  DriverContext(const DriverContext&) = delete;
  DriverContext& operator=(const DriverContext&) = delete;
  ~DriverContext();

  [[nodiscard]] DriverApi& api() { return *api_; }
  [[nodiscard]] DriverEventPool& event_pool() { return event_pool_; }
  [[nodiscard]] DriverPack& pack() { return pack_; }
  /// The registered ranges by the host's addresses, and by the device's.
  [[nodiscard]] RegisteredRanges& host_ranges() { return host_ranges_; }
  [[nodiscard]] RegisteredRanges& device_ranges() { return device_ranges_; }

  [[nodiscard]] const LossState& loss() const { return loss_; }
  /// Whether the context is lost.
  [[nodiscard]] bool lost() const { return loss_.lost(); }
  /// Since when and why it is lost; empty unless lost.
  [[nodiscard]] std::string why_lost() const { return loss_.why(); }
  /// Throws DeviceError if lost.
  void throw_if_lost() const { loss_.throw_if_lost(); }
  /// Notes a loss if the result says that the context is lost. `what` names the call.
  DriverResult note(DriverResult result, const char* what);
  /// note(), and throws DeviceError unless the result is ok: "cannot `what`: ...".
  void check(DriverResult result, const char* what);
  /// The text "cannot `what`: " and the driver's description.
  [[nodiscard]] std::string message(DriverResult result, const char* what) const;

  std::atomic<std::uint64_t> num_streams{0};
  std::atomic<std::uint64_t> num_events{0};
  std::atomic<std::uint64_t> num_buffers{0};

 private:
  const std::unique_ptr<DriverApi> api_;
  RegisteredRanges host_ranges_;
  RegisteredRanges device_ranges_;
  LossState loss_;
  /// Declared last, because their destructors call the driver.
  DriverEventPool event_pool_;
  DriverPack pack_;
};

}  // namespace kvferry::gpu
