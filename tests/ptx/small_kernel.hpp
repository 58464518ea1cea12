// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace kvferry::ptx {

/// A module with one kernel, "small", of a parameter of 16 bytes and some registers of each kind:
/// %p0 to %p3, %r0 to %r9, %rd0 to %rd9. The first line of `body` is line 12.
inline std::string small_module(const std::string& body) {
  return ".version 9.0\n.target sm_90\n.address_size 64\n"
         ".extern .shared .align 128 .b8 stages[];\n"
         ".visible .entry small(\n\t.param .align 8 .b8 small_param_0[16]\n)\n{\n"
         ".reg .pred %p<4>;\n.reg .b32 %r<10>;\n.reg .b64 %rd<10>;\n" +
         body + "\n}\n";
}

}  // namespace kvferry::ptx
