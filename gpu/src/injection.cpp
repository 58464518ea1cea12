// SPDX-License-Identifier: Apache-2.0
#include "kvferry/gpu/injection.hpp"

#include <unistd.h>

namespace kvferry::gpu {

const char* to_string(InjectionWay way) {
  switch (way) {
    case InjectionWay::kToTier:
      return "to_tier";
    case InjectionWay::kInTier:
      return "in_tier";
    case InjectionWay::kFromTier:
      break;
  }
  return "from_tier";
}

const char* to_string(InjectionKind kind) {
  switch (kind) {
    case InjectionKind::kFlip:
      return "flip";
    case InjectionKind::kSwap:
      return "swap";
    case InjectionKind::kWrongSlot:
      return "wrong_slot";
    case InjectionKind::kOldVersion:
      return "old_version";
    case InjectionKind::kShort:
      break;
  }
  return "short";
}

const char* to_string(InjectionEvent::What what) {
  switch (what) {
    case InjectionEvent::What::kInjected:
      return "injected";
    case InjectionEvent::What::kArrived:
      return "arrived";
    case InjectionEvent::What::kReplaced:
      break;
  }
  return "replaced";
}

// Addresses of two processes have nothing in common.
std::string to_json(const InjectionEvent& event) {
  return std::string("{\"event\": \"") + to_string(event.what) +
         "\", \"process\": " + std::to_string(::getpid()) +
         ", \"injection\": " + std::to_string(event.injection) + ", \"way\": \"" +
         to_string(event.way) + "\", \"kind\": \"" + to_string(event.kind) +
         "\", \"slot\": " + std::to_string(event.slot) +
         ", \"first_byte\": " + std::to_string(event.first_byte) +
         ", \"num_bytes\": " + std::to_string(event.num_bytes) + "}";
}

}  // namespace kvferry::gpu
