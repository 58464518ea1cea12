// SPDX-License-Identifier: Apache-2.0
#include "modules.hpp"

#include "build_file.hpp"
#include "interpreter/parser.hpp"
#include "kernels/code_objects.hpp"

#include <cstddef>
#include <map>
#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace kvferry::ptx {
namespace {

constexpr const char* kEmbedded = "embedded";

std::string embedded_text() {
  const std::span<const std::byte> image = gpu::cuda_fatbin();
  const std::string_view bytes(reinterpret_cast<const char*>(image.data()), image.size());
  const std::size_t begin = bytes.find(".version ");
  if (begin == std::string_view::npos) throw std::runtime_error("no PTX in the embedded image");
  return std::string(bytes.substr(begin, bytes.find('\0', begin) - begin));
}

}  // namespace

const std::vector<std::string>& module_names() {
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> names;
    for (const std::string& one : words_of(KVFERRY_CUDA_EMBEDDED))
      names.push_back("compute_" + one);
    if (!names.empty()) names.emplace_back(kEmbedded);
    return names;
  }();
  return kNames;
}

const std::string& module_text(const std::string& name) {
  static std::map<std::string, std::string> texts;
  const auto found = texts.find(name);
  if (found != texts.end()) return found->second;
  return texts
      .emplace(name,
               name == kEmbedded ? embedded_text() : build_file("pack_kernels." + name + ".ptx"))
      .first->second;
}

const Kernel& kernel_of(const std::string& module, const std::string& name) {
  static std::map<std::pair<std::string, std::string>, Kernel> kernels;
  const auto found = kernels.find({module, name});
  if (found != kernels.end()) return found->second;
  Kernel kernel = parse_kernel(module_text(module), name);
  return kernels.emplace(std::pair(module, name), std::move(kernel)).first->second;
}

}  // namespace kvferry::ptx
