// SPDX-License-Identifier: Apache-2.0
#include "hip/hip_compiler.hpp"

#include "kvferry/base/error.hpp"

#include <array>

namespace kvferry::gpu {
namespace {

// hiprtc.h: hiprtcResult is an enum whose 0 is success, hiprtcProgram a pointer.
using CreateProgram = int (*)(void**, const char*, const char*, int, const char**, const char**);
using CompileProgram = int (*)(void*, int, const char**);
using DestroyProgram = int (*)(void**);
using GetSize = int (*)(void*, std::size_t*);
using GetBytes = int (*)(void*, char*);

std::optional<SharedLibrary> find_library(const SharedLibrary& runtime) {
  if (runtime.symbol("hiprtcCreateProgram") != nullptr) return runtime;
  for (const std::string& name :
       {SharedLibrary::find_loaded("libhiprtc.so"), std::string("libhiprtc.so.7"),
        std::string("libhiprtc.so.6"), std::string("libhiprtc.so")}) {
    if (name.empty()) continue;
    try {
      return SharedLibrary::open(name, "");
    } catch (const DeviceError&) {
      continue;
    }
  }
  return std::nullopt;
}

}  // namespace

HipCompiler::HipCompiler(const SharedLibrary& runtime) : library_(find_library(runtime)) {}

std::vector<std::byte> HipCompiler::compile(std::string_view source,
                                            const std::string& architecture) const {
  if (!library_) {
    throw DeviceError("this build has no kernels for " + architecture +
                      " and libhiprtc is not found: install hipRTC, or a build for it");
  }
  const std::string text(source);
  void* program = nullptr;
  int status = function<CreateProgram>("hiprtcCreateProgram")(
      &program, text.c_str(), "kvferry_pack_kernels", 0, nullptr, nullptr);
  if (status != 0) {
    throw DeviceError(library_->name() + " cannot begin to compile, error " +
                      std::to_string(status) + ": reinstall ROCm");
  }
  const std::string target = "--offload-arch=" + architecture;
  std::array<const char*, 3> options = {target.c_str(), "-std=c++17", "-O3"};
  status = function<CompileProgram>("hiprtcCompileProgram")(
      program, static_cast<int>(options.size()), options.data());
  std::vector<std::byte> code;
  std::size_t size = 0;
  if (status == 0) status = function<GetSize>("hiprtcGetCodeSize")(program, &size);
  if (status == 0) {
    code.resize(size);
    status = function<GetBytes>("hiprtcGetCode")(program, reinterpret_cast<char*>(code.data()));
  }
  const std::string log = status == 0 ? "" : log_of(program);
  static_cast<void>(function<DestroyProgram>("hiprtcDestroyProgram")(&program));
  if (status != 0) {
    throw DeviceError(library_->name() + " cannot compile the kernels for " + architecture +
                      ", error " + std::to_string(status) + ": " + log +
                      "; update ROCm or install a build for it");
  }
  return code;
}

template <class Function>
Function HipCompiler::function(const char* name) const {
  auto* const found = reinterpret_cast<Function>(library_->symbol(name));
  if (found == nullptr) {
    throw DeviceError(library_->name() + " has no " + name + ": reinstall ROCm");
  }
  return found;
}

std::string HipCompiler::log_of(void* program) const {
  std::size_t size = 0;
  if (function<GetSize>("hiprtcGetProgramLogSize")(program, &size) != 0 || size == 0) return "";
  std::string log(size, '\0');
  if (function<GetBytes>("hiprtcGetProgramLog")(program, log.data()) != 0) return "";
  return log.substr(0, log.find_first_of(std::string_view("\n\0", 2)));
}

}  // namespace kvferry::gpu
