// SPDX-License-Identifier: Apache-2.0
// Reports grow by rows: whole at every moment, whatever ends the program, and gone on with.
#include "report/row_stream.hpp"

#include "program.hpp"
#include "scratch_folder.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <random>
#include <set>
#include <sstream>
#include <sys/wait.h>
#include <thread>

namespace kvferry::bench {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

class GrowingReport : public testing::Test {
 protected:
  [[nodiscard]] Words with_files(const Words& arguments) const {
    return joined(arguments, {"--json", json_, "--csv", csv_, "--markdown", markdown_});
  }
  [[nodiscard]] static std::string text(const std::string& file) {
    std::ostringstream all;
    all << std::ifstream(file).rdbuf();
    return all.str();
  }
  [[nodiscard]] json report() const { return json::parse(text(json_)); }
  /// A fork runs it, and is killed `delay` after its report has `num_rows` rows; or it ends before.
  void run_and_kill(const Words& arguments, std::size_t num_rows,
                    std::chrono::microseconds delay) const {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(run_program(arguments).exit_code);
    int status = 0;
    while (::waitpid(child, &status, WNOHANG) == 0) {
      if (!std::filesystem::exists(json_) || report().at("rows").size() < num_rows) continue;
      std::this_thread::sleep_for(delay);
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
      return;
    }
  }
  /// A fork runs it, and gets `signal` after `delay`; the status of its end.
  [[nodiscard]] int run_and_signal(const Words& arguments, int signal,
                                   std::chrono::microseconds delay) const {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(run_program(arguments).exit_code);
    std::this_thread::sleep_for(delay);
    ::kill(child, signal);
    int status = 0;
    ::waitpid(child, &status, 0);
    return status;
  }
  /// All files say the same rows, whole.
  void expect_valid() const {
    const json found = report();
    std::size_t in_steps = 0;
    for (const json& step : found.at("steps")) in_steps += step.at("rows").get<std::size_t>();
    EXPECT_EQ(found.at("rows").size(), in_steps);
    const std::string csv = text(csv_);
    EXPECT_TRUE(csv.empty() || csv.back() == '\n');
    const std::string markdown = text(markdown_);
    EXPECT_TRUE(markdown.empty() || markdown.starts_with("## kvferry-bench copy"));
  }
  [[nodiscard]] static std::multiset<std::string> identities(const json& report) {
    std::multiset<std::string> names;
    for (const json& row : report.at("rows")) {
      names.insert(row.at("direction").dump() + row.at("path").dump() + row.at("count").dump() +
                   row.at("fragment_bytes").dump() + row.at("threads").dump());
    }
    return names;
  }

  const ScratchFolder folder_;
  const std::string json_ = (folder_.path() / "r.json").string();
  const std::string csv_ = (folder_.path() / "r.csv").string();
  const std::string markdown_ = (folder_.path() / "r.md").string();
  const Words copy_ = {
      "copy",    "--quick", "--link-size", "64KiB", "--fragment",   "512,1KiB,2KiB,4KiB",
      "--count", "8,16",    "--rounds",    "20",    "--round-size", "64KiB"};
};

TEST_F(GrowingReport, IsWholeAfterAKillAtAnyMomentAndIsGoneOnWith) {
  ASSERT_EQ(run_program(with_files(copy_)).exit_code, 0);
  const auto all = identities(report());
  EXPECT_EQ(report().at("complete"), true);
  std::mt19937 random(25);
  std::size_t num_partial = 0;
  for (int life = 0; life < 6; ++life) {
    for (const std::string& file : {json_, csv_, markdown_}) std::filesystem::remove(file);
    std::size_t num_rows = 0;
    for (int kill = 0; kill < 3; ++kill) {
      const std::chrono::microseconds delay(random() % 3'000);
      run_and_kill(with_files(joined(copy_, {"--resume"})), num_rows + random() % 8, delay);
      if (!std::filesystem::exists(json_)) continue;
      expect_valid();
      num_rows = report().at("rows").size();
      if (num_rows != 0 && report().at("complete") == false) ++num_partial;
    }
    ASSERT_EQ(run_program(with_files(joined(copy_, {"--resume"}))).exit_code, 0);
    const json resumed = report();
    EXPECT_EQ(resumed.at("complete"), true);
    EXPECT_EQ(identities(resumed), all);
    EXPECT_FALSE(resumed.at("peaks").is_null());
  }
  EXPECT_GT(num_partial, 0U) << "no kill came while rows were measured: nothing was shown";
}

TEST_F(GrowingReport, ResumeMeasuresOnlyWhatIsMissing) {
  ASSERT_EQ(run_program(with_files(copy_)).exit_code, 0);
  json cut = report();
  const auto whole = cut;
  const json last = cut.at("steps").back();
  cut.at("steps").erase(cut.at("steps").size() - 1);
  for (std::size_t i = 0; i < last.at("rows").get<std::size_t>(); ++i) {
    cut.at("rows").erase(cut.at("rows").size() - 1);
  }
  // A figure that no measurement gives.
  for (json& row : cut.at("rows")) row["gb_per_s"] = 123456.5;
  cut["peaks"]["h2d_gb_per_s"] = 654321.5;
  std::ofstream(json_) << cut;
  ASSERT_EQ(run_program(with_files(joined(copy_, {"--resume"}))).exit_code, 0);
  const json resumed = report();
  EXPECT_EQ(identities(resumed), identities(whole));
  EXPECT_EQ(resumed.at("peaks").at("h2d_gb_per_s"), 654321.5);
  for (std::size_t i = 0; i < resumed.at("rows").size(); ++i) {
    EXPECT_EQ(resumed.at("rows").at(i).at("gb_per_s") == 123456.5, i < cut.at("rows").size()) << i;
  }
}

TEST_F(GrowingReport, ResumeRefusesAnotherMeasurement) {
  ASSERT_EQ(run_program(with_files(copy_)).exit_code, 0);
  const auto refused = [&](const Words& arguments, const std::string& why) {
    const ProgramRun run = run_program(joined(arguments, {"--resume"}));
    EXPECT_EQ(run.exit_code, 2) << run.err;
    EXPECT_NE(run.err.find(why), std::string::npos) << run.err;
  };
  const std::string before = text(json_);
  refused(with_files({"link", "--quick"}), "its subcommand is \"copy\", not \"link\"");
  refused(with_files(joined(copy_, {"--seed", "2"})), "its command line is");
  refused(with_files(joined(copy_, device_arguments("cuda_stand_in"))), "its backend is");
  refused(copy_, "--json");
  EXPECT_EQ(text(json_), before);
  std::ofstream(json_) << "no report";
  refused(with_files(copy_), "is not a report");
}

TEST_F(GrowingReport, ATerminationEndsItAfterTheRowWithAWholeReport) {
  Words slow = copy_;
  slow.insert(slow.end(),
              {"--fragment", "512,1KiB,2KiB,4KiB,8KiB,16KiB,32KiB", "--warm-up", "500"});
  int status = 0;
  // A machine that is busy may not have installed its handlers yet.
  for (int delay_ms = 100; delay_ms <= 3200; delay_ms *= 2) {
    status = run_and_signal(with_files(slow), SIGTERM, std::chrono::milliseconds(delay_ms));
    if (WIFEXITED(status)) break;
  }
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 5);
  const json found = report();
  EXPECT_EQ(found.at("complete"), false);
  EXPECT_NE(found.at("notes").dump().find("--resume measures the rest"), std::string::npos);
}

// Its percentages are of the best row, so that the table comes at the end.
TEST_F(GrowingReport, TheTableOfTheLinkIsPrintedOnce) {
  const ProgramRun run =
      run_program(with_files({"link", "--quick", "--link-size", "64KiB", "--wide"}));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  std::size_t num_lines = 0;
  std::istringstream lines(run.out);
  for (std::string line; std::getline(lines, line);) {
    num_lines += line.ends_with(" yes") ? 1U : 0U;
  }
  const json written = report();
  EXPECT_EQ(num_lines, written.at("rows").size());
  for (const json& row : written.at("rows")) EXPECT_FALSE(row.at("percent_of_peak").is_null());
}

TEST_F(GrowingReport, EverySubcommandIsGoneOnWithWithoutMeasuringAgain) {
  const std::vector<Words> commands = {
      {"link", "--quick", "--link-size", "64KiB"},
      {"pipeline", "--quick", "--link-size", "64KiB", "--shape", "2x512", "--blocks", "4"},
      {"expect", "copy", "--fragment", "8KiB"}};
  for (const Words& command : commands) expect_gone_on_with(command);
}

}  // namespace
}  // namespace kvferry::bench
