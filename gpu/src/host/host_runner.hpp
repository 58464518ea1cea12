// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "host/host_context.hpp"
#include "host/host_operation.hpp"

#include <string>

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

  /// Lets the interceptor hold the operation back, and loses the device if it says so.
  [[nodiscard]] OperationVerdict intercepted(const OperationInfo& info);
  void fail(const std::string& why);

  HostContext& context_;
  std::string failure_;
};

}  // namespace kvferry::gpu
