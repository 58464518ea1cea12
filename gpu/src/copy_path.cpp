// SPDX-License-Identifier: Apache-2.0
#include "kvferry/gpu/copy_path.hpp"

#include "kvferry/base/error.hpp"

#include <array>
#include <string>

namespace kvferry::gpu {
namespace {

constexpr std::array<CopyPath, 4> kPaths = {CopyPath::kPerRun, CopyPath::kBatch, CopyPath::kKernel,
                                            CopyPath::kStaged};

}  // namespace

const char* to_string(CopyPath path) {
  switch (path) {
    case CopyPath::kPerRun:
      return "per_run";
    case CopyPath::kBatch:
      return "batch";
    case CopyPath::kKernel:
      return "kernel";
    case CopyPath::kStaged:
      return "staged";
  }
  return "unknown path";
}

CopyPath copy_path_from(std::string_view name) {
  std::string known;
  for (const CopyPath path : kPaths) {
    if (name == to_string(path)) return path;
    known += std::string(known.empty() ? "" : ", ") + to_string(path);
  }
  throw ConfigError("copy path '" + std::string(name) + "' is unknown; known are: " + known);
}

}  // namespace kvferry::gpu
