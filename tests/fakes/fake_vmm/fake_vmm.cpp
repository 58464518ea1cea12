// SPDX-License-Identifier: Apache-2.0
// A stand-in for what kvcached calls of CUDA, on host memory: "physical" pages are memory files,
// mapping them is real, and one budget in the file FAKE_VMM_FILE (FAKE_VMM_BYTES in all) stands for
// a device that several processes share.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fcntl.h>
#include <mutex>
#include <sys/mman.h>
#include <unistd.h>
#include <unordered_map>

namespace {

/// What processes that name one file share. A new file is all zeros, which is its first state.
struct SharedDevice {
  std::atomic<std::int64_t> used_bytes;
  std::atomic<std::int64_t> num_maps;
  std::atomic<std::int64_t> num_unmaps;
};

constexpr std::size_t kPageBytes = std::size_t{2} << 20;
constexpr std::size_t kLeastAlignment = std::size_t{64} << 20;

SharedDevice& device() {
  static SharedDevice* shared = [] {
    const char* path = std::getenv("FAKE_VMM_FILE");
    const int file = path == nullptr ? memfd_create("fake_vmm", MFD_CLOEXEC)
                                     : open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, sizeof(SharedDevice)) != 0) std::abort();
    void* memory = mmap(nullptr, sizeof(SharedDevice), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) std::abort();
    close(file);
    return static_cast<SharedDevice*>(memory);
  }();
  return *shared;
}

std::int64_t total_bytes() {
  const char* text = std::getenv("FAKE_VMM_BYTES");
  return text == nullptr ? std::int64_t{1} << 30 : std::atoll(text);
}

/// The sizes of this process's pages, by handle.
std::mutex sizes_mutex;
std::unordered_map<CUmemGenericAllocationHandle, std::size_t> sizes;

void* at(CUdeviceptr address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

CUresult leave_empty(CUdeviceptr address, std::size_t num_bytes) {
  const int flags = MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  return mmap(at(address), num_bytes, PROT_NONE, flags, -1, 0) == MAP_FAILED ? CUDA_ERROR_UNKNOWN
                                                                             : CUDA_SUCCESS;
}

}  // namespace

extern "C" {

std::int64_t fake_vmm_used_bytes() { return device().used_bytes; }
std::int64_t fake_vmm_num_unmaps() { return device().num_unmaps; }
/// Takes memory away as another process would; gives it back if negative.
void fake_vmm_take(std::int64_t num_bytes) { device().used_bytes += num_bytes; }

CUresult cuGetErrorString(CUresult result, const char** text) {
  *text = result == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "a call of the stand-in failed";
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute, CUdevice) {
  *value = 1;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(std::size_t* bytes, const CUmemAllocationProp*,
                                       CUmemAllocationGranularity_flags) {
  *bytes = kPageBytes;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* address, std::size_t num_bytes, std::size_t alignment,
                             CUdeviceptr, unsigned long long) {
  const std::size_t aligned = std::max(alignment, kLeastAlignment);
  void* memory = mmap(nullptr, num_bytes + aligned, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = (reinterpret_cast<CUdeviceptr>(memory) + aligned - 1) / aligned * aligned;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, std::size_t num_bytes) {
  return leave_empty(address, num_bytes);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t num_bytes,
                     const CUmemAllocationProp*, unsigned long long) {
  const auto wanted = static_cast<std::int64_t>(num_bytes);
  const std::int64_t used = device().used_bytes += wanted;
  const int file = used > total_bytes() ? -1 : memfd_create("fake_vmm_page", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, wanted) != 0) {
    if (file >= 0) close(file);
    device().used_bytes -= wanted;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *handle = static_cast<CUmemGenericAllocationHandle>(file);
  const std::lock_guard lock(sizes_mutex);
  sizes[*handle] = num_bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  {
    const std::lock_guard lock(sizes_mutex);
    const auto found = sizes.find(handle);
    if (found == sizes.end()) return CUDA_ERROR_INVALID_VALUE;
    device().used_bytes -= static_cast<std::int64_t>(found->second);
    sizes.erase(found);
  }
  close(static_cast<int>(handle));
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr address, std::size_t num_bytes, std::size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long) {
  ++device().num_maps;
  void* mapped = mmap(at(address), num_bytes, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_SHARED,
                      static_cast<int>(handle), static_cast<off_t>(offset));
  return mapped == MAP_FAILED ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr address, std::size_t num_bytes) {
  ++device().num_unmaps;
  return leave_empty(address, num_bytes);
}

CUresult cuMemSetAccess(CUdeviceptr, std::size_t, const CUmemAccessDesc*, std::size_t) {
  return CUDA_SUCCESS;
}

cudaError_t cudaFree(void*) { return cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDevice(int* ordinal) {
  *ordinal = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "a call of the stand-in failed"; }
cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* all_bytes) {
  *all_bytes = static_cast<std::size_t>(total_bytes());
  *free_bytes =
      static_cast<std::size_t>(std::max<std::int64_t>(0, total_bytes() - device().used_bytes));
  return cudaSuccess;
}

}  // extern "C"
