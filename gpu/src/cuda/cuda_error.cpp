// SPDX-License-Identifier: Apache-2.0
#include "cuda/cuda_error.hpp"

namespace kvferry::gpu {
namespace {

DriverStatus status_of(cuda_abi::Result code) {
  switch (code) {
    case 0:  // CUDA_SUCCESS
      return DriverStatus::kSuccess;
    case 600:  // CUDA_ERROR_NOT_READY
      return DriverStatus::kNotReady;
    case 2:  // CUDA_ERROR_OUT_OF_MEMORY
      return DriverStatus::kOutOfMemory;
    case 801:  // CUDA_ERROR_NOT_SUPPORTED
      return DriverStatus::kNotSupported;
    case 4:    // CUDA_ERROR_DEINITIALIZED
    case 709:  // CUDA_ERROR_CONTEXT_IS_DESTROYED
      return DriverStatus::kGone;
    // These are the codes of which cuda.h says that the context is left in an inconsistent state or
    // that the process must be ended. 46, CUDA_ERROR_DEVICE_UNAVAILABLE, is not one: another
    // process has the device.
    case 214:  // CUDA_ERROR_ECC_UNCORRECTABLE
    case 220:  // CUDA_ERROR_NVLINK_UNCORRECTABLE
    case 226:  // CUDA_ERROR_CONTAINED
    case 700:  // CUDA_ERROR_ILLEGAL_ADDRESS
    case 702:  // CUDA_ERROR_LAUNCH_TIMEOUT
    case 710:  // CUDA_ERROR_ASSERT
    case 714:  // CUDA_ERROR_HARDWARE_STACK_ERROR
    case 715:  // CUDA_ERROR_ILLEGAL_INSTRUCTION
    case 716:  // CUDA_ERROR_MISALIGNED_ADDRESS
    case 717:  // CUDA_ERROR_INVALID_ADDRESS_SPACE
    case 718:  // CUDA_ERROR_INVALID_PC
    case 719:  // CUDA_ERROR_LAUNCH_FAILED
    case 721:  // CUDA_ERROR_TENSOR_MEMORY_LEAK
    case 810:  // CUDA_ERROR_MPS_CLIENT_TERMINATED
    case 911:  // CUDA_ERROR_EXTERNAL_DEVICE
    case 999:  // CUDA_ERROR_UNKNOWN
      return DriverStatus::kLost;
    default:
      return DriverStatus::kFailed;
  }
}

}  // namespace

DriverResult cuda_result(cuda_abi::Result code) { return {status_of(code), code}; }

bool cuda_says_capturing(cuda_abi::Result code) {
  return code == 906;  // CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
}

}  // namespace kvferry::gpu
