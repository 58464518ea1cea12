// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace kvferry::ptx {

/// The text of a file that the build wrote beside the code objects. Throws std::runtime_error if it
/// did not.
[[nodiscard]] std::string build_file(const std::string& name);

/// The words of a text.
[[nodiscard]] std::vector<std::string> words_of(const char* text);

}  // namespace kvferry::ptx
