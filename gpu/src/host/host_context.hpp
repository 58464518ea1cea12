// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/host_link.hpp"

#include "host/host_link_engine.hpp"
#include "host/link_model.hpp"
#include "registered_ranges.hpp"

#include <atomic>
#include <cstdint>
#include <utility>

namespace kvferry::gpu {

/// What the streams and registrations of one host device share. Its address is the device's
/// identity.
struct HostContext {
  HostContext(const HostLinkOptions& options, OperationInterceptor operation_interceptor)
      : link(options), interceptor(std::move(operation_interceptor)) {}

  [[nodiscard]] HostLinkEngine& engine(CopyDirection direction) {
    return direction == CopyDirection::kDeviceToHost ? d2h_engine : h2d_engine;
  }

  const LinkModel link;
  const OperationInterceptor interceptor;
  RegisteredRanges registrations;
  HostLinkEngine d2h_engine;
  HostLinkEngine h2d_engine;
  std::atomic<std::uint64_t> num_copies{0};
  std::atomic<std::uint64_t> num_streams{0};
};

}  // namespace kvferry::gpu
