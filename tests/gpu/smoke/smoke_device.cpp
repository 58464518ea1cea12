// SPDX-License-Identifier: Apache-2.0
#include "smoke_device.hpp"

#include "cuda/cuda_api.hpp"
#include "driver/shared_library.hpp"
#include "fake_control.hpp"
#include "fake_library.hpp"
#include "hip/hip_api.hpp"
#include "kernels/code_objects.hpp"

#include <array>
#include <chrono>
#include <stdexcept>
#include <sys/mman.h>
#include <thread>

namespace kvferry::smoke {

std::string SmokeBackend::library() const {
  if (!is_stand_in()) return "";
  return is_cuda() ? fakes::fake_cuda_library() : fakes::fake_hip_library();
}

SmokeDevice::SmokeDevice(const SmokeBackend& backend) : backend_(backend) {
  if (backend.is_cuda()) {
    api_ = std::make_unique<gpu::CudaApi>(gpu::CudaLibrary(backend.library()), 0);
  } else {
    api_ = std::make_unique<gpu::HipApi>(gpu::HipLibrary(backend.library()), 0);
  }
  require(api_->enter().result, "make the device current");
}

void SmokeDevice::require(gpu::DriverResult result, const std::string& what) const {
  if (!result.ok()) throw std::runtime_error("cannot " + what + ": " + api_->describe(result.code));
}

void SmokeDevice::make_memory() {
  if (memory_ != 0) return;
  void* const mapped = ::mmap(nullptr, 2 * kPiece, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (mapped == MAP_FAILED) throw std::runtime_error("cannot map host memory");
  host_ = static_cast<std::uint8_t*>(mapped);
  const auto address = reinterpret_cast<std::uintptr_t>(host_);
  require(api_->register_host(address, kPiece), "register host memory");
  require(api_->register_host(address + kPiece, kPiece), "register its neighbour");
  alias_ = require(api_->host_device_address(address), "ask for the device's address of it");
  memory_ = require(api_->allocate(2 * kPiece), "allocate device memory");
}

void SmokeDevice::settle(gpu::StreamHandle stream) {
  gpu::DriverResult result;
  while ((result = api_->query_stream(stream)).status == gpu::DriverStatus::kNotReady) {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  require(result, "see the work end");
}

gpu::ModuleHandle SmokeDevice::load_kernels() {
  std::span<const std::byte> image = fakes::kFakeImage;
  if (!backend_.is_stand_in()) {
    image =
        backend_.is_cuda() ? gpu::cuda_fatbin() : gpu::hip_code_object(api_->traits().architecture);
  }
  if (image.empty()) throw std::runtime_error("this build has no kernels for the device");
  return require(api_->load_module(image), "load the kernels");
}

std::string SmokeDevice::raw_bus_id() const {
  std::array<char, 64> text{};
  const auto length = static_cast<int>(text.size());
  bool answered = false;
  if (backend_.is_cuda()) {
    const gpu::CudaLibrary cuda(backend_.library());
    gpu::cuda_abi::Device device = 0;
    answered = cuda.device_get(&device, 0) == gpu::cuda_abi::kSuccess &&
               cuda.device_get_pci_bus_id(text.data(), length, device) == gpu::cuda_abi::kSuccess;
  } else {
    const gpu::HipLibrary hip(backend_.library());
    answered = hip.device_get_pci_bus_id(text.data(), length, 0) == gpu::hip_abi::kSuccess;
  }
  if (!answered) throw std::runtime_error("the driver tells no bus id");
  return text.data();
}

void* SmokeDevice::symbol(const char* name) const {
  std::string path = backend_.library();
  if (path.empty()) {
    path = gpu::SharedLibrary::find_loaded(backend_.is_cuda() ? "libcuda.so" : "libamdhip64.so");
  }
  void* const found =
      path.empty() ? nullptr : gpu::SharedLibrary::open(path, "it was open").symbol(name);
  if (found == nullptr) throw std::runtime_error("the driver has no " + std::string(name));
  return found;
}

std::uint8_t byte_at(std::size_t i) {
  return static_cast<std::uint8_t>(i * std::size_t{2654435761} >> 13U);
}

std::string first_wrong(std::span<const std::uint8_t> bytes) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == byte_at(i)) continue;
    return "wrong byte at offset " + std::to_string(i) + ": expected " +
           std::to_string(byte_at(i)) + ", found " + std::to_string(bytes[i]);
  }
  return "";
}

}  // namespace kvferry::smoke
