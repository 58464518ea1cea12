// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

/// The part of the CUDA driver's binary interface that we use, so that no toolkit is needed to
/// build. tests/unit/gpu_driver/cuda_abi_test.cpp compares it with cuda.h if there is one.
namespace kvferry::gpu::cuda_abi {

using Result = int;
using Device = int;
using DevicePointer = unsigned long long;
using Handle = void*;

inline constexpr Result kSuccess = 0;

inline constexpr int kAttributeMultiprocessorCount = 16;
inline constexpr int kAttributeComputeCapabilityMajor = 75;
inline constexpr int kAttributeComputeCapabilityMinor = 76;

inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDefault = 0;
inline constexpr unsigned kHostRegisterPortable = 1;
inline constexpr unsigned kHostRegisterDeviceMap = 2;
inline constexpr int kFunctionAttributeMaxDynamicSharedBytes = 8;
inline constexpr int kCaptureModeRelaxed = 2;
inline constexpr int kCaptureStatusNone = 0;

inline constexpr int kSourceOrderStream = 1;
inline constexpr int kSourceOrderAny = 3;

struct MemoryLocation {
  int type;
  int id;
};

struct CopyAttributes {
  int source_access_order;
  MemoryLocation source_hint;
  MemoryLocation destination_hint;
  unsigned flags;
};

// The functions by the names of the entry points, each with the version that we request.
using GetProcAddress = Result (*)(const char*, void**, int, std::uint64_t, int*);
using Init = Result (*)(unsigned);
using DriverGetVersion = Result (*)(int*);
using GetErrorText = Result (*)(Result, const char**);
using DeviceGetCount = Result (*)(int*);
using DeviceGet = Result (*)(Device*, int);
using DeviceGetName = Result (*)(char*, int, Device);
using DeviceGetPciBusId = Result (*)(char*, int, Device);
using DeviceGetAttribute = Result (*)(int*, int, Device);
using PrimaryContextRetain = Result (*)(Handle*, Device);
using PrimaryContextRelease = Result (*)(Device);
using ContextPush = Result (*)(Handle);
using ContextPop = Result (*)(Handle*);
using ContextGetStreamPriorities = Result (*)(int*, int*);
using ExchangeCaptureMode = Result (*)(int*);
using StreamCreate = Result (*)(Handle*, unsigned, int);
using StreamCall = Result (*)(Handle);
using StreamIsCapturing = Result (*)(Handle, int*);
using StreamGetContext = Result (*)(Handle, Handle*);
using StreamWaitEvent = Result (*)(Handle, Handle, unsigned);
using EventCreate = Result (*)(Handle*, unsigned);
using EventCall = Result (*)(Handle);
using EventRecord = Result (*)(Handle, Handle);
using EventElapsed = Result (*)(float*, Handle, Handle);
using CopyToDevice = Result (*)(DevicePointer, const void*, std::size_t, Handle);
using CopyToHost = Result (*)(void*, DevicePointer, std::size_t, Handle);
using CopyBatch12080 = Result (*)(DevicePointer*, DevicePointer*, std::size_t*, std::size_t,
                                  CopyAttributes*, std::size_t*, std::size_t, std::size_t*, Handle);
using CopyBatch13000 = Result (*)(DevicePointer*, DevicePointer*, std::size_t*, std::size_t,
                                  CopyAttributes*, std::size_t*, std::size_t, Handle);
using Fill = Result (*)(DevicePointer, unsigned char, std::size_t, Handle);
using Allocate = Result (*)(DevicePointer*, std::size_t);
using Free = Result (*)(DevicePointer);
using MemoryGetInfo = Result (*)(std::size_t*, std::size_t*);
using HostRegister = Result (*)(void*, std::size_t, unsigned);
using HostUnregister = Result (*)(void*);
using HostGetDevicePointer = Result (*)(DevicePointer*, void*, unsigned);
using ModuleLoad = Result (*)(Handle*, const void*);
using ModuleUnload = Result (*)(Handle);
using ModuleGetFunction = Result (*)(Handle*, Handle, const char*);
using FunctionSetAttribute = Result (*)(Handle, int, int);
using Launch = Result (*)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                          unsigned, Handle, void**, void**);

}  // namespace kvferry::gpu::cuda_abi
