// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

/// The part of HIP's binary interface that we use, which is the same in ROCm 6 and 7.
/// tests/unit/gpu_driver/hip_abi_test.cpp compares it with hip_runtime_api.h if there is one.
namespace kvferry::gpu::hip_abi {

using Result = int;
using Device = int;
using Handle = void*;

inline constexpr Result kSuccess = 0;

inline constexpr int kAttributeMultiprocessorCount = 63;

/// hipDeviceProp_t changed its layout in ROCm 6, which gave the new one a name of its own that it
/// keeps (hipGetDevicePropertiesR0600). We read one field of it and give more room than it needs.
inline constexpr std::size_t kPropertiesRoom = 8192;
inline constexpr std::size_t kPropertiesArchitecture = 1160;
inline constexpr std::size_t kPropertiesArchitectureBytes = 256;

inline constexpr unsigned kStreamNonBlocking = 1;
/// Without it a kernel's writes to host memory may not be visible when the event is done.
inline constexpr unsigned kEventReleaseToSystem = 0x80000000U;
inline constexpr unsigned kHostRegisterPortable = 1;
inline constexpr unsigned kHostRegisterMapped = 2;
inline constexpr int kCaptureModeRelaxed = 2;
inline constexpr int kCaptureStatusNone = 0;
inline constexpr int kCopyToDevice = 1;
inline constexpr int kCopyToHost = 2;

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

using Init = Result (*)(unsigned);
using RuntimeGetVersion = Result (*)(int*);
using GetErrorText = const char* (*)(Result);
using GetDeviceCount = Result (*)(int*);
using DeviceGetName = Result (*)(char*, int, Device);
using DeviceGetPciBusId = Result (*)(char*, int, Device);
using DeviceGetAttribute = Result (*)(int*, int, Device);
using GetDeviceProperties = Result (*)(void*, int);
using GetDevice = Result (*)(int*);
using SetDevice = Result (*)(int);
using ExchangeCaptureMode = Result (*)(int*);
using DeviceGetStreamPriorities = Result (*)(int*, int*);
using StreamCreate = Result (*)(Handle*, unsigned, int);
using StreamCall = Result (*)(Handle);
using StreamIsCapturing = Result (*)(Handle, int*);
using StreamGetDevice = Result (*)(Handle, Device*);
using StreamWaitEvent = Result (*)(Handle, Handle, unsigned);
using EventCreate = Result (*)(Handle*, unsigned);
using EventCall = Result (*)(Handle);
using EventRecord = Result (*)(Handle, Handle);
using EventElapsed = Result (*)(float*, Handle, Handle);
using Copy = Result (*)(void*, const void*, std::size_t, int, Handle);
using CopyBatch = Result (*)(void**, void**, std::size_t*, std::size_t, CopyAttributes*,
                             std::size_t*, std::size_t, std::size_t*, Handle);
using Fill = Result (*)(void*, int, std::size_t, Handle);
using Allocate = Result (*)(void**, std::size_t);
using Free = Result (*)(void*);
using MemoryGetInfo = Result (*)(std::size_t*, std::size_t*);
using HostRegister = Result (*)(void*, std::size_t, unsigned);
using HostUnregister = Result (*)(void*);
using HostGetDevicePointer = Result (*)(void**, void*, unsigned);
using ModuleLoad = Result (*)(Handle*, const void*);
using ModuleUnload = Result (*)(Handle);
using ModuleGetFunction = Result (*)(Handle*, Handle, const char*);
using Launch = Result (*)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                          unsigned, Handle, void**, void**);

}  // namespace kvferry::gpu::hip_abi
