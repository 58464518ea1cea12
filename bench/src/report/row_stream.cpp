// SPDX-License-Identifier: Apache-2.0
#include "report/row_stream.hpp"

#include "kvferry/base/error.hpp"

#include "report/terminal_width.hpp"
#include "report/write_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <limits>
#include <ostream>
#include <set>

namespace kvferry::bench {
namespace {

volatile std::sig_atomic_t stop_signal = 0;

/// The part of a command line that says what is measured: all of it except where reports go, and
/// how wide.
std::vector<std::string> measured_arguments(const std::vector<std::string>& arguments) {
  static const std::set<std::string> kFiles = {"--json", "--csv", "--markdown"};
  std::vector<std::string> kept;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string name = arguments[i].substr(0, arguments[i].find('='));
    if (name == "--resume" || name == "--wide") continue;
    if (kFiles.count(name) != 0) {
      if (name == arguments[i]) ++i;
      continue;
    }
    kept.push_back(arguments[i]);
  }
  return kept;
}

nlohmann::json read_json(const std::string& file) {
  std::ifstream in(file);
  if (!in) return nullptr;
  nlohmann::json json = nlohmann::json::parse(in, nullptr, false);
  if (json.is_discarded() || !json.is_object()) {
    throw ConfigError(fmt::format("--resume: {} is not a report", file));
  }
  return json;
}

void require_same(const std::string& file, const char* what, const nlohmann::json& there,
                  const nlohmann::json& here) {
  if (there == here) return;
  throw ConfigError(fmt::format("--resume: {} is of another measurement: its {} is {}, not {}",
                                file, what, there.dump(), here.dump()));
}

std::optional<LinkPeaks> peaks_from(const nlohmann::json& json) {
  if (!json.is_object()) return std::nullopt;
  LinkPeaks peaks;
  peaks.copy_bytes = json.at("copy_bytes");
  peaks.h2d_gb_per_s = json.at("h2d_gb_per_s");
  peaks.d2h_gb_per_s = json.at("d2h_gb_per_s");
  peaks.both_gb_per_s = json.at("both_gb_per_s");
  const auto& device = json.at("device_gb_per_s");
  if (device.is_number()) peaks.device_gb_per_s = device.get<double>();
  return peaks;
}

Table only(const Table& table, const std::vector<std::size_t>& columns) {
  Table some;
  for (const std::size_t i : columns) some.columns.push_back(table.columns[i]);
  for (const auto& row : table.rows) {
    auto& cells = some.rows.emplace_back();
    for (const std::size_t i : columns) cells.push_back(row[i]);
  }
  return some;
}

}  // namespace

void request_stop(int signal_number) noexcept { stop_signal = signal_number; }
void forget_stop() noexcept { stop_signal = 0; }

void RowStream::throw_if_stopped() {
  if (stop_signal == 0) return;
  throw Stopped(fmt::format("stopped by signal {}", static_cast<int>(stop_signal)));
}

RowStream::RowStream(Report& report, const CommonOptions& options, std::ostream& out)
    : report_(report),
      options_(options),
      out_(out),
      room_(options.wide ? std::numeric_limits<std::size_t>::max() : width_of(out)) {
  if (options.resume) resume();
}

// The file is not opened before there is something to write: a command that is refused at once
// leaves an older report as it was.
void RowStream::begin() {
  if (begun_) return;
  begun_ = true;
  write_heading(report_, out_);
  write_files();
}

void RowStream::resume() {
  const std::string& file = options_.json_file;
  if (file.empty()) throw ConfigError("--resume needs --json, which names the report to continue");
  const nlohmann::json json = read_json(file);
  if (json.is_null()) return;
  try {
    require_same(file, "schema", json.at("schema"), kReportSchema);
    require_same(file, "subcommand", json.at("subcommand"), report_.subcommand);
    require_same(file, "backend", json.at("backend"), report_.backend);
    require_same(file, "ordinal", json.at("ordinal"), report_.ordinal);
    require_same(file, "device", json.at("device"), report_.device);
    require_same(file, "command line", measured_arguments(json.at("arguments")),
                 measured_arguments(report_.arguments));
    std::size_t row = 0;
    for (const auto& step : json.at("steps")) {
      nlohmann::json& rows = taken_[step.at("name")] = nlohmann::json::array();
      for (std::size_t i = 0; i < step.at("rows").get<std::size_t>(); ++i) {
        rows.push_back(json.at("rows").at(row++));
      }
    }
    report_.peaks = peaks_from(json.at("peaks"));
    if (json.at("mismatch").is_string()) report_.mismatch = json.at("mismatch");
    if (json.contains("copy_paths")) report_.extra["copy_paths"] = json.at("copy_paths");
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError(
        fmt::format("--resume: {} has not the form of a report that can be gone on "
                    "with ({})",
                    file, error.what()));
  }
}

Cell RowStream::cell_at(const nlohmann::json& row, const Column& column) {
  const auto found = row.find(column.key);
  if (found == row.end() || found->is_null()) return {};
  if (found->is_string()) return found->get<std::string>();
  if (found->is_boolean()) return found->get<bool>();
  if (found->is_number_unsigned()) return found->get<std::uint64_t>();
  return found->get<double>();
}

std::string RowStream::once(std::string name) {
  const std::size_t number = ++names_[name];
  return number == 1 ? name : fmt::format("{} #{}", name, number);
}

void RowStream::add(const std::string& name, Table table) {
  begin();
  const std::size_t first = report_.table.rows.size();
  report_.steps.push_back({name, table.rows.size()});
  report_.table.columns = std::move(table.columns);
  std::move(table.rows.begin(), table.rows.end(), std::back_inserter(report_.table.rows));
  if (!shows_at_end_) show(first);
  write_files();
}

void RowStream::measure_cells(std::size_t first_row) {
  const Table& all = report_.table;
  widths_.resize(all.columns.size());
  for (std::size_t row = first_row; row < all.rows.size(); ++row) {
    for (std::size_t i = 0; i < all.columns.size(); ++i) {
      const Cell& cell = all.rows[row][i];
      if (std::holds_alternative<std::monostate>(cell)) continue;
      widths_[i] = std::max(
          {widths_[i], least_width_of(all.columns[i]), text_of(all.columns[i], cell).size()});
    }
  }
}

std::vector<std::size_t> RowStream::fitting_columns() const {
  std::vector<std::size_t> by_rank;
  for (std::size_t i = 0; i < widths_.size(); ++i) {
    if (widths_[i] != 0) by_rank.push_back(i);
  }
  const auto& columns = report_.table.columns;
  std::stable_sort(by_rank.begin(), by_rank.end(),
                   [&](auto a, auto b) { return columns[a].rank < columns[b].rank; });
  std::vector<std::size_t> fitting;
  std::size_t used = 0;
  for (const std::size_t i : by_rank) {
    const std::size_t width = widths_[i] + (fitting.empty() ? 0 : kColumnGap);
    if (!fitting.empty() && used + width > room_) continue;
    used += width;
    fitting.push_back(i);
  }
  std::sort(fitting.begin(), fitting.end());
  return fitting;
}

void RowStream::show(std::size_t first_row) {
  measure_cells(first_row);
  const std::vector<std::size_t> columns = fitting_columns();
  std::vector<std::size_t> widths;
  for (const std::size_t i : columns) widths.push_back(widths_[i]);
  const Table table = only(report_.table, columns);
  if (columns != shown_columns_ || widths != shown_widths_) write_titles(table, widths, out_);
  shown_columns_ = columns;
  shown_widths_ = widths;
  for (std::size_t row = first_row; row < table.rows.size(); ++row) {
    write_row(table, row, widths, out_);
  }
  out_.flush();
}

void RowStream::write_files() const {
  const CommonOptions& files = options_;
  if (!files.json_file.empty()) write_file(report_, files.json_file, &write_json);
  if (!files.csv_file.empty()) write_file(report_, files.csv_file, &write_csv);
  if (!files.markdown_file.empty()) write_file(report_, files.markdown_file, &write_markdown);
}

void RowStream::finish() {
  if (shows_at_end_) show(0);
  const auto num_seen = static_cast<std::size_t>(
      std::count_if(widths_.begin(), widths_.end(), [](std::size_t width) { return width != 0; }));
  if (num_seen > shown_columns_.size()) {
    out_ << fmt::format("\n{} of {} columns; --wide shows all, and --csv writes them to a file\n",
                        shown_columns_.size(), num_seen);
  }
  out_ << '\n';
  write_heading(report_, out_);
  write_verdict(report_, out_);
  out_.flush();
  write_files();
}

}  // namespace kvferry::bench
