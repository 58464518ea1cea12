// SPDX-License-Identifier: Apache-2.0
// Our declarations of the HIP runtime against its header, where there is one. What is checked is
// checked when this compiles.
#include "hip/hip_abi.hpp"

#include <gtest/gtest.h>

#ifdef KVFERRY_HAS_HIP_H

#define __HIP_PLATFORM_AMD__ 1  // NOLINT: the header asks for it
#include "hip/hip_error.hpp"
#include "same_shape.hpp"

#include <hip/hip_runtime_api.h>

#include <cstddef>

namespace kvferry::gpu {
namespace {

using namespace hip_abi;  // NOLINT(google-build-using-namespace)

static_assert(sizeof(hipError_t) == sizeof(Result) && hipSuccess == kSuccess);
static_assert(sizeof(hipDevice_t) == sizeof(Device) && sizeof(hipStream_t) == sizeof(Handle));
static_assert(hipDeviceAttributeMultiprocessorCount == kAttributeMultiprocessorCount);
static_assert(hipStreamNonBlocking == kStreamNonBlocking);
static_assert(hipEventReleaseToSystem == kEventReleaseToSystem);
static_assert(hipHostRegisterPortable == kHostRegisterPortable);
static_assert(hipHostRegisterMapped == kHostRegisterMapped);
static_assert(hipStreamCaptureModeRelaxed == kCaptureModeRelaxed);
static_assert(hipStreamCaptureStatusNone == kCaptureStatusNone);
static_assert(hipMemcpyHostToDevice == kCopyToDevice && hipMemcpyDeviceToHost == kCopyToHost);

static_assert(kSame<DeviceGetStreamPriorities, decltype(&hipDeviceGetStreamPriorityRange)>);
static_assert(kSame<StreamCreate, decltype(&hipStreamCreateWithPriority)>);

#if HIP_VERSION_MAJOR >= 6
static_assert(offsetof(hipDeviceProp_tR0600, gcnArchName) == kPropertiesArchitecture);
static_assert(sizeof(hipDeviceProp_tR0600::gcnArchName) == kPropertiesArchitectureBytes);
static_assert(sizeof(hipDeviceProp_tR0600) <= kPropertiesRoom);
#endif
#if HIP_VERSION_MAJOR > 7 || (HIP_VERSION_MAJOR == 7 && HIP_VERSION_MINOR >= 1)
static_assert(hipMemcpySrcAccessOrderStream == kSourceOrderStream);
static_assert(hipMemcpySrcAccessOrderAny == kSourceOrderAny);
static_assert(sizeof(hipMemcpyAttributes) == sizeof(CopyAttributes));
static_assert(offsetof(hipMemcpyAttributes, flags) == offsetof(CopyAttributes, flags));
#endif

TEST(HipAbi, HeaderIsNewEnoughForEveryCheck) {
#if HIP_VERSION_MAJOR < 7 || (HIP_VERSION_MAJOR == 7 && HIP_VERSION_MINOR < 1)
  GTEST_SKIP() << "HIP " << HIP_VERSION_MAJOR << "." << HIP_VERSION_MINOR
               << " has no batch call, and before 6 other properties";
#endif
}

TEST(HipAbi, LossesAreToldFromAContextThatIsGone) {
  for (const hipError_t code :
       {hipErrorECCNotCorrectable, hipErrorIllegalAddress, hipErrorLaunchTimeOut, hipErrorAssert,
        hipErrorLaunchFailure, hipErrorUnknown}) {
    EXPECT_EQ(hip_result(code).status, DriverStatus::kLost) << code;
  }
  for (const hipError_t code : {hipErrorDeinitialized, hipErrorContextIsDestroyed}) {
    EXPECT_EQ(hip_result(code).status, DriverStatus::kGone) << code;
  }
  EXPECT_EQ(hip_result(hipErrorInvalidValue).status, DriverStatus::kFailed);
  EXPECT_EQ(hip_result(hipErrorOutOfMemory).status, DriverStatus::kOutOfMemory);
  EXPECT_EQ(hip_result(hipErrorNotReady).status, DriverStatus::kNotReady);
  EXPECT_EQ(hip_result(hipErrorNotSupported).status, DriverStatus::kNotSupported);
  EXPECT_EQ(hip_result(hipSuccess).status, DriverStatus::kSuccess);
  EXPECT_TRUE(hip_says_capturing(hipErrorStreamCaptureImplicit));
}

}  // namespace
}  // namespace kvferry::gpu

#else

TEST(HipAbi, MatchesTheHeader) { GTEST_SKIP() << "no hip_runtime_api.h on this machine"; }

#endif
