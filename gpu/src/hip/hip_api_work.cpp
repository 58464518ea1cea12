// SPDX-License-Identifier: Apache-2.0
// The calls that move bytes and run kernels.
#include "hip/hip_api.hpp"
#include "hip/hip_compiler.hpp"
#include "hip/hip_error.hpp"

#include <vector>

namespace kvferry::gpu {

DriverResult HipApi::copy(CopyDirection direction, const CopyRun& run, StreamHandle stream) {
  const int kind =
      direction == CopyDirection::kHostToDevice ? hip_abi::kCopyToDevice : hip_abi::kCopyToHost;
  return hip_result(
      hip_.copy(pointer(run.destination), pointer(run.source), run.bytes, kind, raw(stream)));
}

// Without attributes, sources are read in stream order; with them, as in the CUDA back end.
DriverResult HipApi::copy_batch(CopyDirection direction, std::span<const CopyRun> runs,
                                StreamHandle stream) {
  std::vector<void*> addresses(2 * runs.size());
  // After the sizes comes a zero per run, as in the CUDA back end.
  std::vector<std::size_t> sizes(2 * runs.size());
  std::size_t* const attribute_of_run = sizes.data() + runs.size();
  void** const destinations = addresses.data();
  void** const sources = destinations + runs.size();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    destinations[i] = pointer(runs[i].destination);
    sources[i] = pointer(runs[i].source);
    sizes[i] = runs[i].bytes;
  }
  hip_abi::CopyAttributes attributes{};
  attributes.source_access_order = direction == CopyDirection::kHostToDevice
                                       ? hip_abi::kSourceOrderAny
                                       : hip_abi::kSourceOrderStream;
  std::size_t failed_run = 0;
  const bool takes_attributes = hip_.version() >= HipLibrary::kBatchAttributesVersion;
  return hip_result(hip_.copy_batch(destinations, sources, sizes.data(), runs.size(),
                                    takes_attributes ? &attributes : nullptr,
                                    takes_attributes ? attribute_of_run : nullptr,
                                    takes_attributes ? 1 : 0, &failed_run, raw(stream)));
}

DriverResult HipApi::fill(std::uintptr_t address, std::uint8_t value, std::uint64_t bytes,
                          StreamHandle stream) {
  return hip_result(hip_.fill(pointer(address), value, bytes, raw(stream)));
}

std::vector<std::byte> HipApi::compile(std::string_view source) {
  return HipCompiler(hip_.library()).compile(source, traits_.architecture);
}

DriverValue<ModuleHandle> HipApi::load_module(std::span<const std::byte> image) {
  hip_abi::Handle module = nullptr;
  const auto code = hip_.module_load(&module, image.data());
  return {hip_result(code), ModuleHandle{reinterpret_cast<std::uintptr_t>(module)}};
}

DriverResult HipApi::unload_module(ModuleHandle module) {
  return hip_result(hip_.module_unload(raw(module)));
}

DriverValue<FunctionHandle> HipApi::function(ModuleHandle module, const char* name,
                                             std::uint32_t /*shared_bytes*/) {
  hip_abi::Handle function = nullptr;
  const auto code = hip_.module_get_function(&function, raw(module), name);
  return {hip_result(code), FunctionHandle{reinterpret_cast<std::uintptr_t>(function)}};
}

DriverResult HipApi::launch(FunctionHandle function, const LaunchShape& shape, void* argument,
                            StreamHandle stream) {
  void* arguments[] = {argument};
  return hip_result(hip_.launch(raw(function), shape.grid[0], shape.grid[1], shape.grid[2],
                                shape.block[0], shape.block[1], shape.block[2], shape.shared_bytes,
                                raw(stream), arguments, nullptr));
}

}  // namespace kvferry::gpu
