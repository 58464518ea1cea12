// SPDX-License-Identifier: Apache-2.0
// The calls that move bytes and run kernels.
#include "cuda/cuda_api.hpp"
#include "cuda/cuda_error.hpp"

#include <vector>

namespace kvferry::gpu {
DriverResult CudaApi::copy(CopyDirection direction, const CopyRun& run, StreamHandle stream) {
  if (direction == CopyDirection::kHostToDevice) {
    return cuda_result(cuda_.copy_to_device(
        run.destination, reinterpret_cast<const void*>(run.source), run.bytes, raw(stream)));
  }
  return cuda_result(cuda_.copy_to_host(reinterpret_cast<void*>(run.destination), run.source,
                                        run.bytes, raw(stream)));
}

// A load may read its slot at any time, because a slot is readable only after its store was seen
// complete. A store reads in stream order. The hints only concern managed memory.
DriverResult CudaApi::copy_batch(CopyDirection direction, std::span<const CopyRun> runs,
                                 StreamHandle stream) {
  std::vector<cuda_abi::DevicePointer> addresses(2 * runs.size());
  // After the sizes comes a zero per run, which says which attribute it has. cuda.h reads one entry
  // per attribute, vllm#53860 one per run; zeros are right for both.
  std::vector<std::size_t> sizes(2 * runs.size());
  std::size_t* const attribute_of_run = sizes.data() + runs.size();
  cuda_abi::DevicePointer* const destinations = addresses.data();
  cuda_abi::DevicePointer* const sources = destinations + runs.size();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    destinations[i] = runs[i].destination;
    sources[i] = runs[i].source;
    sizes[i] = runs[i].bytes;
  }
  cuda_abi::CopyAttributes attributes{};
  attributes.source_access_order = direction == CopyDirection::kHostToDevice
                                       ? cuda_abi::kSourceOrderAny
                                       : cuda_abi::kSourceOrderStream;
  if (cuda_.copy_batch_13000 != nullptr) {
    return cuda_result(cuda_.copy_batch_13000(destinations, sources, sizes.data(), runs.size(),
                                              &attributes, attribute_of_run, 1, raw(stream)));
  }
  std::size_t failed_run = 0;
  return cuda_result(cuda_.copy_batch_12080(destinations, sources, sizes.data(), runs.size(),
                                            &attributes, attribute_of_run, 1, &failed_run,
                                            raw(stream)));
}

DriverResult CudaApi::fill(std::uintptr_t address, std::uint8_t value, std::uint64_t bytes,
                           StreamHandle stream) {
  return cuda_result(cuda_.fill(address, value, bytes, raw(stream)));
}

// For devices newer than the build, the image has PTX, which the driver compiles.
std::vector<std::byte> CudaApi::compile(std::string_view /*source*/) { return {}; }

DriverValue<ModuleHandle> CudaApi::load_module(std::span<const std::byte> image) {
  cuda_abi::Handle module = nullptr;
  const auto code = cuda_.module_load(&module, image.data());
  return {cuda_result(code), ModuleHandle{reinterpret_cast<std::uintptr_t>(module)}};
}

DriverResult CudaApi::unload_module(ModuleHandle module) {
  return cuda_result(cuda_.module_unload(raw(module)));
}

DriverValue<FunctionHandle> CudaApi::function(ModuleHandle module, const char* name,
                                              std::uint32_t shared_bytes) {
  cuda_abi::Handle function = nullptr;
  auto code = cuda_.module_get_function(&function, raw(module), name);
  if (code == cuda_abi::kSuccess && shared_bytes > kDefaultSharedBytes) {
    code = cuda_.function_set_attribute(function, cuda_abi::kFunctionAttributeMaxDynamicSharedBytes,
                                        static_cast<int>(shared_bytes));
  }
  return {cuda_result(code), FunctionHandle{reinterpret_cast<std::uintptr_t>(function)}};
}

DriverResult CudaApi::launch(FunctionHandle function, const LaunchShape& shape, void* argument,
                             StreamHandle stream) {
  void* arguments[] = {argument};
  return cuda_result(cuda_.launch(raw(function), shape.grid[0], shape.grid[1], shape.grid[2],
                                  shape.block[0], shape.block[1], shape.block[2],
                                  shape.shared_bytes, raw(stream), arguments, nullptr));
}

}  // namespace kvferry::gpu
