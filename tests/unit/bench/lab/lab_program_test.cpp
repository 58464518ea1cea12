// SPDX-License-Identifier: Apache-2.0
// What the laboratory's subcommands have in common with kvferry-bench's.
#include "program.hpp"
#include "scratch_folder.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvferry::bench {
namespace {

using Words = std::vector<std::string>;

TEST(LabProgram, HelpAndReportsNameTheProgram) {
  const ProgramRun help = run_program({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const std::string subcommand : {"meta", "share", "pin", "trace", "fleet"}) {
    EXPECT_TRUE(says(help.out, subcommand)) << help.out;
  }
  const ProgramRun copy = run_program({"copy", "--quick"});
  EXPECT_EQ(copy.exit_code, 2) << "kvferry-bench has it";
  const auto [run, report] = run_for_report(
      {"pin", "--quick", "--size", "4MiB", "--pages", "normal", "--threads", "1", "--rounds", "1"});
  EXPECT_TRUE(run.out.starts_with("kvferry-lab pin\n")) << run.out;
  EXPECT_EQ(report.at("program"), "kvferry-lab");
}

TEST(LabProgram, EverySubcommandIsGoneOnWithWithoutMeasuringAgain) {
  const ScratchFolder folder;
  const std::string trace = folder
                                .write("t.jsonl",
                                       "{\"input_length\": 1000, \"hash_ids\": [1, 2]}\n"
                                       "{\"input_length\": 1000, \"hash_ids\": [1, 2]}\n")
                                .string();
  const std::vector<Words> commands = {
      {"meta", "--quick", "--op", "lookup", "--resident", "64", "--batch", "8", "--sweep", "0"},
      {"pin", "--quick", "--size", "4MiB", "--pages", "normal", "--threads", "1"},
      {"trace", trace, "--capacity", "1,2"},
      {"fleet", trace, "--capacity", "2", "--nodes", "2", "--routing", "kv_aware"}};
  for (const Words& command : commands) expect_gone_on_with(command);
}

}  // namespace
}  // namespace kvferry::bench
