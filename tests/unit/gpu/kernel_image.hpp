// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "elf_file.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace kvferry::gpu {

struct KernelFacts {
  std::uint32_t num_registers = 0;
  /// Local (CUDA) or private (HIP) memory per thread: spills, and arrays indexed at run time.
  std::uint32_t local_bytes = 0;
};

/// One code object.
struct KernelImage {
  /// "sm_80", "gfx90a"; for PTX "compute_100".
  std::string arch;
  std::map<std::string, KernelFacts> kernels;
  /// Symbols that a loader would have to find elsewhere.
  std::vector<std::string> undefined;
};

/// Machine code and PTX of an uncompressed fatbin. Of PTX only the names of kernels are read.
[[nodiscard]] std::vector<KernelImage> read_cuda_fatbin(FileBytes bytes);

/// The code object of hipcc's bundle for one architecture.
[[nodiscard]] KernelImage read_hip_bundle(FileBytes bytes);

}  // namespace kvferry::gpu
