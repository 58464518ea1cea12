// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace kvferry::gpu {

/// A library that is opened at run time, and never closed: vendors' libraries start threads and
/// register exit handlers, which would run in unmapped code.
class SharedLibrary {
 public:
  SharedLibrary() = default;

  /// Opens `name`. Throws DeviceError with the loader's message, followed by `remedy`.
  [[nodiscard]] static SharedLibrary open(const std::string& name, const std::string& remedy);
  /// The path of a library that the process has loaded and whose file name begins with `prefix`;
  /// empty if there is none.
  [[nodiscard]] static std::string find_loaded(const std::string& prefix);

  [[nodiscard]] const std::string& name() const { return name_; }
  /// Null if there is no such symbol.
  [[nodiscard]] void* symbol(const char* symbol_name) const;

 private:
  SharedLibrary(void* handle, std::string name) : handle_(handle), name_(std::move(name)) {}
  void* handle_ = nullptr;
  std::string name_;
};

}  // namespace kvferry::gpu
