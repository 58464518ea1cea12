// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "subcommand.hpp"

#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

namespace kvferry::bench {

/// The exit status of the program; scripts rely on it.
enum class ExitCode : int {
  kMeasured = 0,      ///< Measured, and every byte was right.
  kDataMismatch = 1,  ///< Measured, but bytes were wrong; the reports are written.
  kBadUsage = 2,      ///< Nothing was measured: the command line is wrong.
  kNoDevice = 3,      ///< Nothing was measured: there is no such device.
  kFailed = 4,        ///< The device, the memory or a file failed during the run.
  kStopped = 5        ///< SIGINT or SIGTERM: the reports have the rows that were measured.
};

/// A program's name, and its subcommands.
struct Program {
  const char* name;
  /// The beginning of the help.
  const char* about;
  /// In the order of the help.
  std::vector<std::unique_ptr<Subcommand>> subcommands;
};

/// Runs `program`: `arguments` without the program's name, tables to `out`, progress and errors to
/// `err`. Returns an ExitCode. Does not throw.
[[nodiscard]] int run_bench(const Program& program, const std::vector<std::string>& arguments,
                            std::ostream& out, std::ostream& err);

}  // namespace kvferry::bench
