// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "host/host_context.hpp"
#include "host/host_operation.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvferry::gpu {

/// Runs the operations of one stream in order and remembers the first failure since the last
/// record. Used by one thread at a time.
class HostRunner {
 public:
  explicit HostRunner(HostContext& context) : context_(context) {}

  /// Returns when the operation ended. Failures are not thrown; the next record gets them.
  void run(const HostOperation& operation);

 private:
  void perform(const CopyOperation& copy);
  void perform(const PackOperation& pack);
  void perform(const FillOperation& fill);
  void perform(const CallOperation& call);
  void perform(const RecordOperation& record);
  void perform(const WaitOperation& wait);

  /// The operation as the injector makes it: the first `end` bytes of a copy, or a pack.
  void inject(const CopyOperation& copy, std::uint64_t end);
  void inject(const PackOperation& pack);
  /// Lets the interceptor hold the operation back, and loses the device if it says so.
  [[nodiscard]] OperationVerdict intercepted(const OperationInfo& info);
  void fail(const std::string& why);

  HostContext& context_;
  std::string failure_;
  /// Of a scatter with an injector: what came from host memory.
  std::vector<std::byte> arrived_;
};

}  // namespace kvferry::gpu
