// SPDX-License-Identifier: Apache-2.0
#include "hip/hip_error.hpp"

namespace kvferry::gpu {
namespace {

DriverStatus status_of(hip_abi::Result code) {
  switch (code) {
    case 0:  // hipSuccess
      return DriverStatus::kSuccess;
    case 600:  // hipErrorNotReady
      return DriverStatus::kNotReady;
    case 2:  // hipErrorOutOfMemory
      return DriverStatus::kOutOfMemory;
    case 801:  // hipErrorNotSupported
      return DriverStatus::kNotSupported;
    case 4:    // hipErrorDeinitialized
    case 709:  // hipErrorContextIsDestroyed
      return DriverStatus::kGone;
    case 53:    // hipErrorPriorLaunchFailure
    case 214:   // hipErrorECCNotCorrectable
    case 700:   // hipErrorIllegalAddress
    case 702:   // hipErrorLaunchTimeOut
    case 710:   // hipErrorAssert
    case 719:   // hipErrorLaunchFailure
    case 999:   // hipErrorUnknown
    case 1052:  // hipErrorRuntimeMemory
    case 1053:  // hipErrorRuntimeOther
      return DriverStatus::kLost;
    default:
      return DriverStatus::kFailed;
  }
}

}  // namespace

DriverResult hip_result(hip_abi::Result code) { return {status_of(code), code}; }

bool hip_says_capturing(hip_abi::Result code) {
  return code == 906;  // hipErrorStreamCaptureImplicit
}

}  // namespace kvferry::gpu
