// SPDX-License-Identifier: Apache-2.0
#include "interpreter/scopes.hpp"

#include "interpreter/fault.hpp"
#include "interpreter/ptx_text.hpp"

#include <algorithm>

namespace kvferry::ptx {

void Scopes::open() { open_.push_back(num_scopes_++); }

void Scopes::declare_registers(std::string_view directive, int line) {
  const std::string name(trimmed(directive.substr(directive.find_last_of(" \t"))));
  const std::size_t range = name.find('<');
  if (range == std::string::npos) {
    registers_[{open_.back(), name}] = num_registers_++;
    return;
  }
  const int count = std::atoi(name.c_str() + range + 1);
  if (count <= 0) throw UnknownPtx(line, "registers '" + std::string(directive) + "'");
  for (int i = 0; i < count; ++i) {
    registers_[{open_.back(), name.substr(0, range) + std::to_string(i)}] = num_registers_++;
  }
}

std::optional<int> Scopes::find_register(std::string_view name) const {
  const std::string key(name);
  for (auto scope = open_.rbegin(); scope != open_.rend(); ++scope) {
    if (const auto found = registers_.find({*scope, key}); found != registers_.end()) {
      return found->second;
    }
  }
  return std::nullopt;
}

void Scopes::declare_label(const std::string& name, std::size_t instruction) {
  labels_[{open_.back(), name}] = instruction;
}

std::optional<std::size_t> Scopes::find_label(const std::string& name,
                                              const std::vector<int>& scopes) const {
  for (auto scope = scopes.rbegin(); scope != scopes.rend(); ++scope) {
    if (const auto found = labels_.find({*scope, name}); found != labels_.end()) {
      return found->second;
    }
  }
  return std::nullopt;
}

}  // namespace kvferry::ptx
