// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/copy_threads.hpp"
#include "kvferry/base/graveyard.hpp"
#include "kvferry/gpu/host_link.hpp"

#include "host/copy_team.hpp"
#include "host/host_link_engine.hpp"
#include "host/link_model.hpp"
#include "injector.hpp"
#include "loss_state.hpp"
#include "registered_ranges.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <utility>

namespace kvferry::gpu {

/// What the streams and registrations of one host device share. Its address is the device's
/// identity.
struct HostContext {
  HostContext(const HostLinkOptions& options, OperationInterceptor operation_interceptor)
      : link(options),
        injector(options.inject.probability == 0
                     ? nullptr
                     : std::make_unique<Injector>(options.inject, options.seed)),
        interceptor(std::move(operation_interceptor)),
        // A simulated link's rate is not its processor's.
        team(std::make_unique<CopyTeam>(link.simulated() ? 0 : num_copy_threads() - 1)) {}
  ~HostContext() {
    if (!team->is_of_this_process()) bury(std::move(team));
  }
  HostContext(const HostContext&) = delete;
  HostContext& operator=(const HostContext&) = delete;

  [[nodiscard]] HostLinkEngine& engine(CopyDirection direction) {
    return direction == CopyDirection::kDeviceToHost ? d2h_engine : h2d_engine;
  }

  const LinkModel link;
  /// Shared with the records, which may outlive the device when it is lost.
  const std::shared_ptr<LossState> loss = std::make_shared<LossState>();
  /// Held shared by who touches memory, alone by who makes a lost device quiet: so nothing is
  /// touched any more when the loss can be seen.
  std::shared_mutex touching;
  const std::unique_ptr<Injector> injector;  ///< Null: nothing is injected.
  const OperationInterceptor interceptor;
  std::unique_ptr<CopyTeam> team;
  RegisteredRanges registrations;
  HostLinkEngine d2h_engine;
  HostLinkEngine h2d_engine;
  std::atomic<std::uint64_t> num_copies{0};
  std::atomic<std::uint64_t> num_streams{0};
  std::atomic<std::uint64_t> num_events{0};
  std::atomic<std::uint64_t> num_buffers{0};
};

}  // namespace kvferry::gpu
