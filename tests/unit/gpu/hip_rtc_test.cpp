// SPDX-License-Identifier: Apache-2.0
#include "kernels/code_objects.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <dlfcn.h>
#include <string>

namespace kvferry::gpu {
namespace {

/// hipRTC's entry points; ROCm has them in a library of their own, Debian's 5.2 in the runtime.
class HipRtc {
 public:
  HipRtc() {
    for (const char* name :
         {"libhiprtc.so", "libhiprtc.so.7", "libhiprtc.so.6", "libamdhip64.so.5"}) {
      library_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (library_ != nullptr && dlsym(library_, "hiprtcCreateProgram") != nullptr) return;
    }
    library_ = nullptr;
  }
  [[nodiscard]] bool found() const { return library_ != nullptr; }

  template <typename... Arguments>
  int call(const char* name, Arguments... arguments) const {
    return reinterpret_cast<int (*)(Arguments...)>(dlsym(library_, name))(arguments...);
  }

 private:
  void* library_ = nullptr;  // never closed: the runtime has threads
};

TEST(HipRtc, CompilesTheEmbeddedSourceWithoutADevice) {
  if (hip_code_objects().empty()) GTEST_SKIP() << "built without hipcc";
  const HipRtc rtc;
  if (!rtc.found()) GTEST_SKIP() << "no hipRTC";
  const std::string source(pack_kernel_source());
  void* program = nullptr;
  ASSERT_EQ(rtc.call("hiprtcCreateProgram", &program, source.c_str(), "pack_kernels", 0,
                     static_cast<const char**>(nullptr), static_cast<const char**>(nullptr)),
            0);
  std::array<const char*, 3> options{"--offload-arch=gfx90a", "-std=c++17", "-O3"};
  const int status = rtc.call("hiprtcCompileProgram", program, 3, options.data());
  std::size_t size = 0;
  ASSERT_EQ(rtc.call("hiprtcGetProgramLogSize", program, &size), 0);
  std::string log(size, '\0');
  if (size > 0) rtc.call("hiprtcGetProgramLog", program, log.data());
  EXPECT_EQ(status, 0) << log;
  ASSERT_EQ(rtc.call("hiprtcGetCodeSize", program, &size), 0);
  EXPECT_GT(size, 1000U);
  EXPECT_EQ(rtc.call("hiprtcDestroyProgram", &program), 0);
}

}  // namespace
}  // namespace kvferry::gpu
