// SPDX-License-Identifier: Apache-2.0
#include "gcn_modules.hpp"

#include "build_file.hpp"
#include "gcn/parser.hpp"

#include <map>
#include <utility>

namespace kvferry::ptx {

const std::vector<std::string>& gcn_module_names() {
  static const std::vector<std::string> kNames = words_of(KVFERRY_HIP_EMBEDDED);
  return kNames;
}

const std::string& gcn_module_text(const std::string& name) {
  static std::map<std::string, std::string> texts;
  const auto found = texts.find(name);
  if (found != texts.end()) return found->second;
  return texts.emplace(name, build_file("pack_kernels." + name + ".s")).first->second;
}

const gcn::Kernel& gcn_kernel_of(const std::string& module, const std::string& name) {
  static std::map<std::pair<std::string, std::string>, gcn::Kernel> kernels;
  const auto found = kernels.find({module, name});
  if (found != kernels.end()) return found->second;
  gcn::Kernel kernel = gcn::parse_kernel(gcn_module_text(module), name);
  return kernels.emplace(std::pair(module, name), std::move(kernel)).first->second;
}

}  // namespace kvferry::ptx
