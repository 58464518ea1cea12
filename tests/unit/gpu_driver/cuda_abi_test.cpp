// SPDX-License-Identifier: Apache-2.0
// Our declarations of the CUDA driver against cuda.h, where there is one. What is checked is
// checked when this compiles.
#include "cuda/cuda_abi.hpp"

#include <gtest/gtest.h>

#ifdef KVFERRY_HAS_CUDA_H

#include "cuda/cuda_error.hpp"
#include "same_shape.hpp"

#include <cuda.h>

#include <cudaTypedefs.h>

namespace kvferry::gpu {
namespace {

using namespace cuda_abi;  // NOLINT(google-build-using-namespace)

static_assert(sizeof(CUresult) == sizeof(Result) && CUDA_SUCCESS == kSuccess);
static_assert(sizeof(CUdevice) == sizeof(Device) && sizeof(CUdeviceptr) == sizeof(DevicePointer));
static_assert(sizeof(CUstream) == sizeof(Handle) && sizeof(CUcontext) == sizeof(Handle));
static_assert(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT == kAttributeMultiprocessorCount);
static_assert(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR == kAttributeComputeCapabilityMajor);
static_assert(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR == kAttributeComputeCapabilityMinor);
static_assert(CU_STREAM_NON_BLOCKING == kStreamNonBlocking && CU_EVENT_DEFAULT == kEventDefault);
static_assert(CU_MEMHOSTREGISTER_PORTABLE == kHostRegisterPortable);
static_assert(CU_MEMHOSTREGISTER_DEVICEMAP == kHostRegisterDeviceMap);
static_assert(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ==
              kFunctionAttributeMaxDynamicSharedBytes);
static_assert(CU_STREAM_CAPTURE_MODE_RELAXED == kCaptureModeRelaxed);
static_assert(CU_STREAM_CAPTURE_STATUS_NONE == kCaptureStatusNone);

// By the versions that CudaLibrary asks for.
static_assert(kSame<GetProcAddress, PFN_cuGetProcAddress_v12000>);
static_assert(kSame<Init, PFN_cuInit_v2000>);
static_assert(kSame<DriverGetVersion, PFN_cuDriverGetVersion_v2020>);
static_assert(kSame<GetErrorText, PFN_cuGetErrorName_v6000>);
static_assert(kSame<GetErrorText, PFN_cuGetErrorString_v6000>);
static_assert(kSame<DeviceGetCount, PFN_cuDeviceGetCount_v2000>);
static_assert(kSame<DeviceGet, PFN_cuDeviceGet_v2000>);
static_assert(kSame<DeviceGetName, PFN_cuDeviceGetName_v2000>);
static_assert(kSame<DeviceGetPciBusId, PFN_cuDeviceGetPCIBusId_v4010>);
static_assert(kSame<DeviceGetAttribute, PFN_cuDeviceGetAttribute_v2000>);
static_assert(kSame<PrimaryContextRetain, PFN_cuDevicePrimaryCtxRetain_v7000>);
static_assert(kSame<PrimaryContextRelease, PFN_cuDevicePrimaryCtxRelease_v11000>);
static_assert(kSame<ContextPush, PFN_cuCtxPushCurrent_v4000>);
static_assert(kSame<ContextPop, PFN_cuCtxPopCurrent_v4000>);
static_assert(kSame<ContextGetStreamPriorities, PFN_cuCtxGetStreamPriorityRange_v5050>);
static_assert(kSame<ExchangeCaptureMode, PFN_cuThreadExchangeStreamCaptureMode_v10010>);
static_assert(kSame<StreamCreate, PFN_cuStreamCreateWithPriority_v5050>);
static_assert(kSame<StreamCall, PFN_cuStreamDestroy_v4000>);
static_assert(kSame<StreamCall, PFN_cuStreamQuery_v2000>);
static_assert(kSame<StreamIsCapturing, PFN_cuStreamIsCapturing_v10000>);
static_assert(kSame<StreamGetContext, PFN_cuStreamGetCtx_v9020>);
static_assert(kSame<StreamWaitEvent, PFN_cuStreamWaitEvent_v3020>);
static_assert(kSame<EventCreate, PFN_cuEventCreate_v2000>);
static_assert(kSame<EventCall, PFN_cuEventDestroy_v4000>);
static_assert(kSame<EventCall, PFN_cuEventQuery_v2000>);
static_assert(kSame<EventRecord, PFN_cuEventRecord_v2000>);
static_assert(kSame<EventElapsed, PFN_cuEventElapsedTime_v2000>);
static_assert(kSame<CopyToDevice, PFN_cuMemcpyHtoDAsync_v3020>);
static_assert(kSame<CopyToHost, PFN_cuMemcpyDtoHAsync_v3020>);
static_assert(kSame<Fill, PFN_cuMemsetD8Async_v3020>);
static_assert(kSame<Allocate, PFN_cuMemAlloc_v3020>);
static_assert(kSame<Free, PFN_cuMemFree_v3020>);
static_assert(kSame<MemoryGetInfo, PFN_cuMemGetInfo_v3020>);
static_assert(kSame<HostRegister, PFN_cuMemHostRegister_v6050>);
static_assert(kSame<HostUnregister, PFN_cuMemHostUnregister_v4000>);
static_assert(kSame<HostGetDevicePointer, PFN_cuMemHostGetDevicePointer_v3020>);
static_assert(kSame<ModuleLoad, PFN_cuModuleLoadData_v2000>);
static_assert(kSame<ModuleUnload, PFN_cuModuleUnload_v2000>);
static_assert(kSame<ModuleGetFunction, PFN_cuModuleGetFunction_v2000>);
static_assert(kSame<FunctionSetAttribute, PFN_cuFuncSetAttribute_v9000>);
static_assert(kSame<Launch, PFN_cuLaunchKernel_v4000>);

#if CUDA_VERSION >= 12080
static_assert(kSame<CopyBatch12080, PFN_cuMemcpyBatchAsync_v12080>);
static_assert(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM == kSourceOrderStream);
static_assert(CU_MEMCPY_SRC_ACCESS_ORDER_ANY == kSourceOrderAny);
static_assert(sizeof(CUmemcpyAttributes) == sizeof(CopyAttributes));
static_assert(offsetof(CUmemcpyAttributes, srcAccessOrder) ==
              offsetof(CopyAttributes, source_access_order));
static_assert(offsetof(CUmemcpyAttributes, srcLocHint) == offsetof(CopyAttributes, source_hint));
static_assert(offsetof(CUmemcpyAttributes, dstLocHint) ==
              offsetof(CopyAttributes, destination_hint));
static_assert(offsetof(CUmemcpyAttributes, flags) == offsetof(CopyAttributes, flags));
#endif
#if CUDA_VERSION >= 13000
static_assert(kSame<CopyBatch13000, PFN_cuMemcpyBatchAsync_v13000>);
static_assert(!kSame<CopyBatch12080, PFN_cuMemcpyBatchAsync_v13000>);
#endif

TEST(CudaAbi, LossesAreToldFromAContextThatIsGone) {
  for (const CUresult code :
       {CUDA_ERROR_ECC_UNCORRECTABLE, CUDA_ERROR_NVLINK_UNCORRECTABLE, CUDA_ERROR_ILLEGAL_ADDRESS,
        CUDA_ERROR_LAUNCH_TIMEOUT, CUDA_ERROR_ASSERT, CUDA_ERROR_HARDWARE_STACK_ERROR,
        CUDA_ERROR_ILLEGAL_INSTRUCTION, CUDA_ERROR_MISALIGNED_ADDRESS,
        CUDA_ERROR_INVALID_ADDRESS_SPACE, CUDA_ERROR_INVALID_PC, CUDA_ERROR_LAUNCH_FAILED,
        CUDA_ERROR_MPS_CLIENT_TERMINATED, CUDA_ERROR_EXTERNAL_DEVICE, CUDA_ERROR_UNKNOWN}) {
    EXPECT_EQ(cuda_result(code).status, DriverStatus::kLost) << code;
  }
  for (const CUresult code : {CUDA_ERROR_DEINITIALIZED, CUDA_ERROR_CONTEXT_IS_DESTROYED}) {
    EXPECT_EQ(cuda_result(code).status, DriverStatus::kGone) << code;
  }
  EXPECT_EQ(cuda_result(CUDA_ERROR_DEVICE_UNAVAILABLE).status, DriverStatus::kFailed);
  EXPECT_EQ(cuda_result(CUDA_ERROR_INVALID_VALUE).status, DriverStatus::kFailed);
  EXPECT_EQ(cuda_result(CUDA_ERROR_OUT_OF_MEMORY).status, DriverStatus::kOutOfMemory);
  EXPECT_EQ(cuda_result(CUDA_ERROR_NOT_READY).status, DriverStatus::kNotReady);
  EXPECT_EQ(cuda_result(CUDA_ERROR_NOT_SUPPORTED).status, DriverStatus::kNotSupported);
  EXPECT_EQ(cuda_result(CUDA_SUCCESS).status, DriverStatus::kSuccess);
  EXPECT_TRUE(cuda_says_capturing(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT));
}

}  // namespace
}  // namespace kvferry::gpu

#else

TEST(CudaAbi, MatchesCudaH) { GTEST_SKIP() << "no cuda.h on this machine"; }

#endif
