// SPDX-License-Identifier: Apache-2.0
#include "fake_core.hpp"
#include "fake_kernels.hpp"

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
    run_kernel(name, num_ctas, num_threads, parameter,
               [this](std::uint64_t address, std::size_t bytes) {
                 return on_device(address, bytes) ? memory(address) : nullptr;
               });
  });
}

}  // namespace kvferry::fakes
