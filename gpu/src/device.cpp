// SPDX-License-Identifier: Apache-2.0
#include "kvferry/gpu/device.hpp"

namespace kvferry::gpu {

const char* to_string(BackendKind kind) {
  switch (kind) {
    case BackendKind::kHost:
      return "host";
    case BackendKind::kCuda:
      return "cuda";
    case BackendKind::kHip:
      return "hip";
  }
  return "unknown back end";
}

const char* to_string(CopyDirection direction) {
  switch (direction) {
    case CopyDirection::kDeviceToHost:
      return "device to host";
    case CopyDirection::kHostToDevice:
      return "host to device";
  }
  return "unknown direction";
}

}  // namespace kvferry::gpu
