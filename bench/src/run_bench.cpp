// SPDX-License-Identifier: Apache-2.0
#include "run_bench.hpp"

#include "help_text.hpp"
#include "options/closest.hpp"
#include "progress.hpp"
#include "report/row_stream.hpp"
#include "report/terminal_width.hpp"

#include <CLI/CLI.hpp>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <csignal>
#include <ctime>
#include <iostream>
#include <unistd.h>

namespace kvferry::bench {
namespace {

constexpr const char* kExitCodes =
    "Ends with 0: measured and verified; 1: data mismatch; 2: bad usage; 3: no such device; "
    "4: the device, the memory or a file gave out; 5: stopped by a signal, the report has what is "
    "there.";

int code(ExitCode exit_code) { return static_cast<int>(exit_code); }

std::string now_text() { return fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr))); }

/// While it lives, SIGINT and SIGTERM end the measurement after the current step. A second signal
/// ends it at once.
class StopSignals {
 public:
  StopSignals() {
    forget_stop();
    struct sigaction action = {};
    action.sa_handler = &request_stop;
    action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
    ::sigaction(SIGINT, &action, &interrupt_);
    ::sigaction(SIGTERM, &action, &terminate_);
  }
  ~StopSignals() {
    ::sigaction(SIGINT, &interrupt_, nullptr);
    ::sigaction(SIGTERM, &terminate_, nullptr);
  }
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

 private:
  struct sigaction interrupt_ = {};
  struct sigaction terminate_ = {};
};

ProgressStyle progress_style(const std::ostream& err) {
  const bool terminal = &err == &std::cerr && ::isatty(STDERR_FILENO) == 1;
  return terminal ? ProgressStyle::kTerminal : ProgressStyle::kLines;
}

/// What to say if the first word is no subcommand of the program; empty if it is one, or an option.
std::string unknown_subcommand(const Program& program, const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments.front().starts_with('-')) return "";
  std::vector<std::string> known;
  for (const auto& subcommand : program.subcommands) known.emplace_back(subcommand->name());
  const std::string& word = arguments.front();
  if (std::find(known.begin(), known.end(), word) != known.end()) return "";
  const std::string near = closest(word, known);
  return fmt::format("'{}' is not a subcommand{} Known are {}", word,
                     near.empty() ? "." : fmt::format(", did you mean {}?", near),
                     fmt::join(known, ", "));
}

/// Takes the first GPU if the user named no device. Without one the name stays empty.
void choose_device(const Subcommand& subcommand, CommonOptions& options) {
  const bool is_named = !options.device.empty() || !options.driver_library.empty();
  if (!subcommand.uses_device() || is_named) return;
  if (const auto gpu = first_gpu()) options.device = *gpu;
}

ExitCode measure(Subcommand& subcommand, const CommonOptions& options, Report report,
                 std::ostream& out, std::ostream& err) {
  const DeviceChoice choice = options.device_choice();
  if (!subcommand.uses_device() && choice.kind != gpu::BackendKind::kHost) {
    throw ConfigError(fmt::format("{} measures no device: leave out --device {}", subcommand.name(),
                                  options.device));
  }
  subcommand.check_options(options);
  OpenDevice open(choice);
  if (subcommand.uses_device() && options.device.empty()) {
    err << "no GPU is available, so this measures the host's own copies; --device cuda says why\n";
  }
  report.subcommand = subcommand.name();
  report.backend = choice.name();
  report.ordinal = choice.ordinal;
  report.device = open.device().description();
  if (choice.driver == DeviceChoice::Driver::kStandIn) {
    report.notes.emplace_back(
        "On a stand-in of the driver, without a GPU: the calls are real, no figure means "
        "anything.");
  }
  report.started_at = now_text();
  report.seed = options.seed;
  report.quick = options.effort == Effort::kQuick;
  report.warm_up_rounds = options.warm_up_rounds();
  Verifier verifier(options.seed, options.corrupt_round);
  const StopSignals signals;
  RowStream rows(report, options, out);
  std::string stopped;
  try {
    Progress progress(err, progress_style(err));
    Bench bench{open.device(), options, verifier, progress, rows};
    subcommand.run(bench, report);
    report.complete = true;
  } catch (const Stopped& stop) {
    stopped = fmt::format(
        "{} after {} rows: {}", stop.what(), report.table.rows.size(),
        options.json_file.empty() ? "the rest was not measured" : "--resume measures the rest");
    report.notes.push_back("Not complete: " + stopped + ".");
  }
  if (report.mismatch.empty()) report.mismatch = verifier.first_mismatch();
  rows.finish();
  if (!stopped.empty()) {
    err << report.program << ": " << stopped << '\n';
    return ExitCode::kStopped;
  }
  return report.mismatch.empty() ? ExitCode::kMeasured : ExitCode::kDataMismatch;
}

}  // namespace

int run_bench(const Program& program, const std::vector<std::string>& arguments, std::ostream& out,
              std::ostream& err) {
  CommonOptions options;
  CLI::App app(program.about, program.name);
  app.footer(kExitCodes);
  app.require_subcommand(1);
  app.formatter(std::make_shared<HelpText>(width_of(out)));
  app.set_version_flag("--version", KVFERRY_VERSION);
  for (const auto& subcommand : program.subcommands) {
    CLI::App* const sub = app.add_subcommand(subcommand->name(), subcommand->summary());
    sub->footer(kExitCodes);
    subcommand->add_options(*sub);
    add_common_options(*sub, options);
  }
  std::string hint = fmt::format("try {} --help", program.name);
  try {
    // CLI11 takes the arguments from the back.
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
    for (const auto& subcommand : program.subcommands) {
      if (!app.got_subcommand(subcommand->name())) continue;
      hint = fmt::format("try {} {} --help", program.name, subcommand->name());
      Report report;
      report.program = program.name;
      report.arguments = arguments;
      choose_device(*subcommand, options);
      return code(measure(*subcommand, options, std::move(report), out, err));
    }
  } catch (const CLI::ParseError& error) {
    if (std::string said = unknown_subcommand(program, arguments); !said.empty()) {
      err << program.name << ": " << said << " (" << hint << ")\n";
      return code(ExitCode::kBadUsage);
    }
    if (app.exit(error, out, err) == code(ExitCode::kMeasured)) return code(ExitCode::kMeasured);
    return code(ExitCode::kBadUsage);
  } catch (const ConfigError& error) {
    err << program.name << ": " << error.what() << " (" << hint << ")\n";
    return code(ExitCode::kBadUsage);
  } catch (const NoSuchDevice& error) {
    err << program.name << ": " << error.what() << '\n';
    return code(ExitCode::kNoDevice);
  } catch (const std::exception& error) {
    err << program.name << ": the measurement failed: " << error.what() << '\n';
    return code(ExitCode::kFailed);
  }
  return code(ExitCode::kBadUsage);
}

}  // namespace kvferry::bench
