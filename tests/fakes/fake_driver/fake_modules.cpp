// SPDX-License-Identifier: Apache-2.0
#include "fake_core.hpp"
#include "fake_kernels.hpp"
#include "kernels/pack_walk.hpp"

#include <cstring>
#include <utility>
#include <vector>

namespace kvferry::fakes {

std::uintptr_t FakeCore::load_module() {
  MutexLock lock(mutex_);
  return *modules_.insert(next_handle()).first;
}

int FakeCore::unload_module(std::uintptr_t module) {
  MutexLock lock(mutex_);
  return modules_.erase(module) == 1 ? kOk : kInvalidHandle;
}

std::uintptr_t FakeCore::function(std::uintptr_t module, const std::string& name) {
  MutexLock lock(mutex_);
  if (modules_.count(module) == 0 || !is_kernel(name)) return 0;
  const std::uintptr_t handle = next_handle();
  functions_.emplace(handle, name);
  return handle;
}

int FakeCore::launch(std::uintptr_t function, unsigned num_ctas, unsigned num_threads,
                     const void* argument, std::uintptr_t stream) {
  std::string name;
  {
    MutexLock lock(mutex_);
    const auto found = functions_.find(function);
    if (found == functions_.end()) return kInvalidHandle;
    name = found->second;
    ++calls_[name];
  }
  const auto* const first = static_cast<const std::byte*>(argument);
  const std::vector<std::byte> parameter(first, first + parameter_bytes(name));
  return submit(stream, [this, name, num_ctas, num_threads, parameter] {
    run_launch(name, num_ctas, num_threads, parameter);
  });
}

// A scatter that reads registered memory gets what the injector makes of it.
void FakeCore::run_launch(const std::string& name, unsigned num_ctas, unsigned num_threads,
                          std::vector<std::byte> parameter) const {
  std::vector<std::byte> arrived;
  std::uintptr_t arrived_at = 0;
  std::uintptr_t arrived_end = 0;
  const auto injecting = injector();
  const bool scatters = name.starts_with("kvferry_scatter");
  if (injecting != nullptr && (scatters || name.starts_with("kvferry_gather"))) {
    gpu::PackArguments pack{};
    std::memcpy(&pack, parameter.data(), sizeof(pack));
    const std::uint64_t bytes = pack.num_blocks * pack.packed_bytes;
    const auto packed = reinterpret_cast<std::uintptr_t>(memory(pack.packed));
    if (!scatters) {
      injecting->know_blocks(packed, pack.num_blocks, pack.packed_bytes);
    } else if (registered(pack.packed, bytes)) {
      arrived.resize(bytes + gpu::kMaxWidth);
      arrived_at = reinterpret_cast<std::uintptr_t>(arrived.data());
      // Kernels go by the alignment of addresses.
      arrived_at += (packed - arrived_at) % gpu::kMaxWidth;
      arrived_end = arrived_at + bytes;
      const CopyRun run{.destination = arrived_at, .source = packed, .bytes = bytes};
      injecting->copy(gpu::InjectionWay::kFromTier, {&run, 1});
      pack.packed = arrived_at;
      std::memcpy(parameter.data(), &pack, sizeof(pack));
    }
  }
  run_kernel(name, num_ctas, num_threads, parameter, [&](std::uint64_t address, std::size_t bytes) {
    if (address >= arrived_at && address + bytes <= arrived_end) {
      return reinterpret_cast<void*>(address);
    }
    return on_device(address, bytes) ? memory(address) : nullptr;
  });
}

}  // namespace kvferry::fakes
