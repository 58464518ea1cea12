// SPDX-License-Identifier: Apache-2.0
#include "run_bench.hpp"

#include "progress.hpp"
#include "report/write_report.hpp"
#include "subcommand.hpp"

#include <CLI/CLI.hpp>
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <iostream>
#include <unistd.h>

namespace kvferry::bench {
namespace {

constexpr const char* kAbout =
    "kvferry-bench: what a machine's link between device and host memory can do, and how much of\n"
    "it an offload path gets. Every figure is measured on data that is verified. GB = 1e9 bytes,\n"
    "KiB = 1024 bytes, us = microseconds.";
constexpr const char* kExitCodes =
    "Ends with 0: measured and verified; 1: data mismatch; 2: bad usage; 3: no such device;\n"
    "4: the device, the memory or a file gave out.";

int code(ExitCode exit_code) { return static_cast<int>(exit_code); }

std::string now_text() { return fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr))); }

void write_files(const Report& report, const CommonOptions& options) {
  if (!options.json_file.empty()) write_file(report, options.json_file, &write_json);
  if (!options.csv_file.empty()) write_file(report, options.csv_file, &write_csv);
  if (!options.markdown_file.empty()) write_file(report, options.markdown_file, &write_markdown);
}

ProgressStyle progress_style(const std::ostream& err) {
  const bool terminal = &err == &std::cerr && ::isatty(STDERR_FILENO) == 1;
  return terminal ? ProgressStyle::kTerminal : ProgressStyle::kLines;
}

ExitCode measure(Subcommand& subcommand, const CommonOptions& options, Report report,
                 std::ostream& out, std::ostream& err) {
  const DeviceChoice choice = options.device_choice();
  if (!subcommand.uses_device() && choice.kind != gpu::BackendKind::kHost) {
    throw ConfigError(fmt::format("{} measures no device: leave --device {} out", subcommand.name(),
                                  options.device));
  }
  subcommand.check_options(options);
  OpenDevice open(choice);
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
  {
    Progress progress(err, progress_style(err));
    Bench bench{open.device(), options, verifier, progress};
    subcommand.run(bench, report);
  }
  report.mismatch = verifier.first_mismatch();
  write_table(report, out);
  write_files(report, options);
  return report.mismatch.empty() ? ExitCode::kMeasured : ExitCode::kDataMismatch;
}

}  // namespace

int run_bench(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  CommonOptions options;
  CLI::App app(kAbout, "kvferry-bench");
  app.footer(kExitCodes);
  app.require_subcommand(1);
  app.set_version_flag("--version", KVFERRY_VERSION);
  const auto all = subcommands();
  for (const auto& subcommand : all) {
    CLI::App* const sub = app.add_subcommand(subcommand->name(), subcommand->summary());
    sub->footer(kExitCodes);
    subcommand->add_options(*sub);
    add_common_options(*sub, options);
  }
  std::string hint = "try kvferry-bench --help";
  try {
    // Taken from the back.
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
    for (const auto& subcommand : all) {
      if (!app.got_subcommand(subcommand->name())) continue;
      hint = fmt::format("try kvferry-bench {} --help", subcommand->name());
      Report report;
      report.arguments = arguments;
      return code(measure(*subcommand, options, std::move(report), out, err));
    }
  } catch (const CLI::ParseError& error) {
    if (app.exit(error, out, err) == code(ExitCode::kMeasured)) return code(ExitCode::kMeasured);
    return code(ExitCode::kBadUsage);
  } catch (const ConfigError& error) {
    err << "kvferry-bench: " << error.what() << " (" << hint << ")\n";
    return code(ExitCode::kBadUsage);
  } catch (const NoSuchDevice& error) {
    err << "kvferry-bench: " << error.what() << '\n';
    return code(ExitCode::kNoDevice);
  } catch (const std::exception& error) {
    err << "kvferry-bench: the measurement failed: " << error.what() << '\n';
    return code(ExitCode::kFailed);
  }
  return code(ExitCode::kBadUsage);
}

}  // namespace kvferry::bench
