// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

#include <vector>

namespace kvferry::bench::trace {

/// Adds an option with a list, separated by commas, to a subcommand that takes FILE. The flag takes
/// one argument: with more, the parser could not tell whether the next is FILE.
template <class T>
CLI::Option* add_list(CLI::App& app, const char* flag, std::vector<T>& target, const char* help) {
  return app.add_option(flag, target, help)->delimiter(',')->allow_extra_args(false);
}

}  // namespace kvferry::bench::trace
