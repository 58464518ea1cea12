// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

#include <cstddef>
#include <string>

namespace kvferry::bench {

/// Help texts for people: an option has the name of its value instead of a C++ type, its default
/// stands in brackets at the end of its description, and no line is wider than the terminal.
class HelpText final : public CLI::Formatter {
 public:
  explicit HelpText(std::size_t width);
  [[nodiscard]] std::string make_option(const CLI::Option* option,
                                        bool is_positional) const override;
  [[nodiscard]] std::string make_subcommand(const CLI::App* subcommand) const override;
  [[nodiscard]] std::string make_description(const CLI::App* app) const override;
  [[nodiscard]] std::string make_footer(const CLI::App* app) const override;

 private:
  /// A name, and next to it what it means.
  [[nodiscard]] std::string entry(const std::string& name, const std::string& meaning) const;

  std::size_t width_;
};

}  // namespace kvferry::bench
