// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "interpreter/fault.hpp"

#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvferry::ptx {

/// A fault that a compiler, or we, could put into a kernel: an edit of its PTX by a rule.
struct Mutant {
  const char* name;
  /// Why such a fault is no work of fiction.
  const char* reason;
  /// The kernels that it is made of.
  std::vector<const char*> kernels;
  /// A regular expression (ECMAScript), and what replaces the match.
  const char* pattern;
  const char* replacement;
  /// Which matches, from 0; none: every one.
  std::vector<int> which;
  /// What may find it first. None of a hazard: wrong bytes.
  std::vector<std::optional<Hazard>> found_by;

  friend void PrintTo(const Mutant& mutant, std::ostream* to) { *to << mutant.name; }
};

[[nodiscard]] std::span<const Mutant> mutants();

/// The module with the fault in the kernel. None if the rule does not fit the kernel's text.
[[nodiscard]] std::optional<std::string> mutated(const std::string& module, std::string_view kernel,
                                                 const Mutant& mutant);

}  // namespace kvferry::ptx
