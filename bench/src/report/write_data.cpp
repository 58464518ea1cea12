// SPDX-License-Identifier: Apache-2.0
// Reports for programs (JSON and CSV), and files of every form.
#include "kvferry/base/error.hpp"

#include "report/write_report.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <utility>

namespace kvferry::bench {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const Cell& cell) {
  return std::visit(
      [](const auto& value) -> Json {
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::monostate>) {
          return nullptr;
        } else {
          return value;
        }
      },
      cell);
}

Json rows_of(const Table& table) {
  Json rows = Json::array();
  for (const auto& cells : table.rows) {
    Json& row = rows.emplace_back(Json::object());
    for (std::size_t i = 0; i < cells.size(); ++i) row[table.columns[i].key] = json_of(cells[i]);
  }
  return rows;
}

Json json_of(const std::vector<Report::Step>& steps) {
  Json list = Json::array();
  for (const Report::Step& step : steps) {
    list.push_back({{"name", step.name}, {"rows", step.num_rows}});
  }
  return list;
}

Json json_of(const std::optional<LinkPeaks>& peaks) {
  if (!peaks) return nullptr;
  return {
      {"copy_bytes", peaks->copy_bytes},
      {"h2d_gb_per_s", peaks->h2d_gb_per_s},
      {"d2h_gb_per_s", peaks->d2h_gb_per_s},
      {"both_gb_per_s", peaks->both_gb_per_s},
      {"device_gb_per_s", peaks->device_gb_per_s ? Json(*peaks->device_gb_per_s) : Json(nullptr)}};
}

// RFC 4180: a cell with a separator is quoted, and a quotation mark inside is doubled.
std::string csv_of(const Cell& cell) {
  const Json json = json_of(cell);
  if (json.is_null()) return "";
  if (!json.is_string()) return json.dump();
  const std::string text = json.get<std::string>();
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted.append(c == '"' ? 2 : 1, c);
  return quoted + '"';
}

}  // namespace

void write_csv(const Report& report, std::ostream& out) {
  const char* separator = "";
  for (const Column& column : report.table.columns) {
    out << std::exchange(separator, ",") << column.key;
  }
  out << '\n';
  for (const auto& row : report.table.rows) {
    separator = "";
    for (const Cell& cell : row) out << std::exchange(separator, ",") << csv_of(cell);
    out << '\n';
  }
}

void write_json(const Report& report, std::ostream& out) {
  Json json = {{"schema", kReportSchema},
               {"program", report.program},
               {"version", KVFERRY_VERSION},
               {"subcommand", report.subcommand},
               {"arguments", report.arguments},
               {"backend", report.backend},
               {"ordinal", report.ordinal},
               {"device", report.device},
               {"started_at", report.started_at},
               {"seed", report.seed},
               {"quick", report.quick},
               {"warm_up_rounds", report.warm_up_rounds},
               {"complete", report.complete},
               {"steps", json_of(report.steps)},
               {"verified", report.mismatch.empty()},
               {"mismatch", report.mismatch.empty() ? Json() : Json(report.mismatch)},
               {"peaks", json_of(report.peaks)},
               {"notes", report.notes},
               {"rows", rows_of(report.table)}};
  json.update(report.extra);
  out << json.dump(2) << '\n';
}

void write_file(const Report& report, const std::string& file,
                void (*write)(const Report&, std::ostream&)) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const bool replaces = !fs::exists(file, ignored) || fs::is_regular_file(file, ignored);
  const std::string target = replaces ? file + ".partial" : file;
  std::ofstream out(target);
  write(report, out);
  out.close();
  bool written = static_cast<bool>(out);
  if (written && replaces) written = std::rename(target.c_str(), file.c_str()) == 0;
  if (!written) throw ResourceError(fmt::format("the report {} cannot be written", file));
}

}  // namespace kvferry::bench
