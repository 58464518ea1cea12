// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace kvferry::ptx {

/// A piece of a kernel's body.
struct Statement {
  enum class Kind { kInstruction, kDirective, kLabel, kOpen, kClose };

  Kind kind;
  /// Without the semicolon, the colon, comments and space around it. Empty for braces.
  std::string text;
  int line;
};

/// One ".entry" of a module.
struct EntryText {
  std::string name;
  /// Between the name and the body: parameters and directives.
  std::string header;
  std::vector<Statement> body;
  /// Where its text begins and ends in the module.
  std::size_t begin;
  std::size_t end;
};

/// Takes the kernels of a module apart. Throws UnknownPtx where a body does not end.
[[nodiscard]] std::vector<EntryText> entries_of(std::string_view module);

/// Without white space around it.
[[nodiscard]] std::string_view trimmed(std::string_view text);

}  // namespace kvferry::ptx
