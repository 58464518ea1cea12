// SPDX-License-Identifier: Apache-2.0
#include "driver/driver_kernels.hpp"

#include "driver/driver_context.hpp"
#include "driver/driver_scope.hpp"
#include "kernels/code_objects.hpp"

#include <algorithm>
#include <span>
#include <vector>

namespace kvferry::gpu {
namespace {

constexpr int kFirstWithBulkCopy = 90;

}  // namespace

DriverKernels::~DriverKernels() {
  ModuleHandle module{};
  {
    MutexLock lock(mutex_);
    module = module_;
  }
  if (module == ModuleHandle{} || context_.lost()) return;
  const DriverScope scope(context_);
  static_cast<void>(context_.api().unload_module(module));
}

FunctionHandle DriverKernels::function(const std::string& name, std::uint32_t shared_bytes) {
  {
    MutexLock lock(mutex_);
    const auto known = functions_.find(name);
    if (known != functions_.end() && shared_bytes <= known->second.shared_bytes) {
      return known->second.handle;
    }
  }
  const auto found = context_.api().function(module(), name.c_str(), shared_bytes);
  const std::string memory = " with " + std::to_string(shared_bytes) + " bytes of shared memory";
  context_.check(found.result, ("find the kernel " + name + memory).c_str());
  MutexLock lock(mutex_);
  functions_[name] = {found.value, std::max(shared_bytes, kDefaultSharedBytes)};
  return found.value;
}

bool DriverKernels::available() const {
  if (!image().empty()) return true;
  return context_.api().traits().kind == BackendKind::kHip && !pack_kernel_source().empty();
}

std::span<const std::byte> DriverKernels::image() const {
  if (!image_.empty()) return image_;
  const DriverTraits& traits = context_.api().traits();
  return traits.kind == BackendKind::kCuda ? cuda_fatbin() : hip_code_object(traits.architecture);
}

BulkCopy DriverKernels::bulk_copy() const {
  const bool in_image = !image_.empty() || cuda_newest_architecture() >= kFirstWithBulkCopy;
  const bool on_device = context_.api().traits().compute_capability >= kFirstWithBulkCopy;
  return in_image && on_device ? BulkCopy::kYes : BulkCopy::kNo;
}

ModuleHandle DriverKernels::module() {
  {
    MutexLock lock(mutex_);
    if (module_ != ModuleHandle{}) return module_;
  }
  const ModuleHandle mine = load();
  ModuleHandle surplus{};
  {
    MutexLock lock(mutex_);
    if (module_ == ModuleHandle{}) {
      module_ = mine;
    } else {
      surplus = mine;
    }
  }
  if (surplus != ModuleHandle{}) static_cast<void>(context_.api().unload_module(surplus));
  MutexLock lock(mutex_);
  return module_;
}

// An architecture that the build's compiler did not know is compiled here, once.
ModuleHandle DriverKernels::load() {
  DriverApi& api = context_.api();
  const DriverTraits& traits = api.traits();
  std::span<const std::byte> code = image();
  std::vector<std::byte> compiled;
  if (code.empty() && !pack_kernel_source().empty()) {
    compiled = api.compile(pack_kernel_source());
    code = compiled;
  }
  if (code.empty()) {
    throw DeviceError("this build has no kernels for " + traits.architecture + " (" +
                      traits.device_name +
                      "): install one that was made with the vendor's compiler");
  }
  const auto loaded = api.load_module(code);
  context_.check(loaded.result, ("load the kernels for " + traits.architecture).c_str());
  return loaded.value;
}

}  // namespace kvferry::gpu
