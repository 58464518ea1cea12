// SPDX-License-Identifier: Apache-2.0
#include "kvferry/gpu/device.hpp"

namespace kvferry::gpu {

const char* to_string(CopyDirection direction) {
  switch (direction) {
    case CopyDirection::kDeviceToHost:
      return "device to host";
    case CopyDirection::kHostToDevice:
      return "host to device";
  }
  return "unknown direction";
}

const char* to_string(CopyCall call) {
  switch (call) {
    case CopyCall::kDeviceDefault:
      return "device default";
    case CopyCall::kPerRun:
      return "one call per run";
    case CopyCall::kBatch:
      return "batch call";
  }
  return "unknown call";
}

const char* to_string(DeviceFamily family) {
  switch (family) {
    case DeviceFamily::kHost:
      return "host";
    case DeviceFamily::kCudaOlder:
      return "cuda below sm_90";
    case DeviceFamily::kCuda90:
      return "cuda from sm_90";
    case DeviceFamily::kHip:
      return "hip";
  }
  return "unknown family";
}

}  // namespace kvferry::gpu
