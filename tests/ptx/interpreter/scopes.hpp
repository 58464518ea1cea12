// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvferry::ptx {

/// The names of a kernel: registers and labels, each within the braces that hold it.
class Scopes {
 public:
  void open();
  void close() { open_.pop_back(); }

  /// ".reg .b32 %r<598>" or ".reg .pred done".
  void declare_registers(std::string_view directive, int line);
  /// The number of a register that this or an outer scope declares.
  [[nodiscard]] std::optional<int> find_register(std::string_view name) const;
  [[nodiscard]] int num_registers() const { return num_registers_; }

  void declare_label(const std::string& name, std::size_t instruction);
  /// The open scopes, innermost last: what find_label() asks for when all is read.
  [[nodiscard]] const std::vector<int>& open_scopes() const { return open_; }
  [[nodiscard]] std::optional<std::size_t> find_label(const std::string& name,
                                                      const std::vector<int>& scopes) const;

 private:
  std::vector<int> open_;
  int num_scopes_ = 0;
  int num_registers_ = 0;
  std::map<std::pair<int, std::string>, int, std::less<>> registers_;
  std::map<std::pair<int, std::string>, std::size_t> labels_;
};

}  // namespace kvferry::ptx
