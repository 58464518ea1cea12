// SPDX-License-Identifier: Apache-2.0
// `kvferry-lab trace` as scripts use it.
#include "program.hpp"
#include "scratch_folder.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace kvferry::bench {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

class TraceProgram : public testing::Test {
 protected:
  /// Two documents of two blocks, asked for in turn, the second one less; a block of 512 tokens.
  TraceProgram()
      : file_(folder_
                  .write("tiny.jsonl",
                         "{\"input_length\": 1000, \"hash_ids\": [1, 2]}\n"
                         "{\"input_length\": 1024, \"hash_ids\": [3, 4]}\n"
                         "{\"input_length\": 1000, \"hash_ids\": [1, 2]}\n"
                         "{\"input_length\": 1000, \"hash_ids\": [1, 2]}\n"
                         "{\"input_length\": 1024, \"hash_ids\": [3, 4]}\n")
                  .string()) {}

  [[nodiscard]] json report(const Words& arguments, int exit_code = 0) const {
    const auto [run, report] = run_for_report(joined({"trace", file_}, arguments));
    EXPECT_EQ(run.exit_code, exit_code) << run.err << run.out;
    return report;
  }

  const ScratchFolder folder_;
  const std::string file_;
};

// 512 tokens of 32 layers, 8 heads of 128 elements, K and V, 2 bytes; split over four ranks.
TEST_F(TraceProgram, ModelSaysHowLargeABlockIs) {
  const Words quick = {"--quick", "--policy", "lru"};
  const auto block_bytes = [&](const Words& model) {
    return report(joined(quick, model)).at("trace").at("block_bytes").get<std::uint64_t>();
  };
  EXPECT_EQ(block_bytes({"--model", "llama-3.1-8b"}), 512U * 32 * 8 * 128 * 2 * 2);
  EXPECT_EQ(block_bytes({"--model", "llama-3.1-8b", "--tp", "4", "--kv-dtype", "fp8"}),
            512U * 32 * 2 * 128 * 2);
}

// Two slots and LRU: only the request that repeats its predecessor hits, with both blocks. The
// clairvoyant one keeps one block of the first document over the second.
TEST_F(TraceProgram, FiguresAreThoseWorkedOutByHand) {
  const json found = report({"--capacity", "2,4", "--policy", "lru,optimum", "--block-bytes", "1MB",
                             "--prefill-tokens-per-second", "1000", "--link-gb-per-s", "0.001"});
  ASSERT_EQ(found.at("rows").size(), 4U);
  const json& lru = found.at("rows").at(0);
  EXPECT_EQ(lru.at("policy"), "lru");
  EXPECT_EQ(lru.at("capacity_blocks"), 2);
  EXPECT_DOUBLE_EQ(lru.at("capacity_gb"), 0.002);
  EXPECT_DOUBLE_EQ(lru.at("hit_percent"), 20);
  EXPECT_DOUBLE_EQ(lru.at("loadable_hit_percent"), 20);
  EXPECT_EQ(lru.at("loaded_blocks"), 2);
  EXPECT_EQ(lru.at("stored_blocks"), 8);
  EXPECT_DOUBLE_EQ(lru.at("stored_gb"), 0.008);
  EXPECT_EQ(lru.at("evicted_blocks"), 6);
  // 1000 tokens are a second of prefill; two blocks of 1 MB are two seconds of a link of 1 MB/s.
  EXPECT_DOUBLE_EQ(lru.at("load_s"), 2);
  EXPECT_DOUBLE_EQ(lru.at("store_s"), 8);
  EXPECT_DOUBLE_EQ(lru.at("saved_s"), 1 - 2);
  EXPECT_TRUE(lru.at("traffic").is_null());
  const json& optimum = found.at("rows").at(1);
  EXPECT_DOUBLE_EQ(optimum.at("percent_of_optimum"), 100);
  EXPECT_DOUBLE_EQ(lru.at("percent_of_optimum"), 100 * lru.at("hit_percent").get<double>() /
                                                     optimum.at("hit_percent").get<double>());
  EXPECT_GT(optimum.at("hit_percent").get<double>(), 20);
  // All four blocks fit: the first access to each misses.
  for (const std::size_t row : {2U, 3U}) {
    EXPECT_DOUBLE_EQ(found.at("rows").at(row).at("hit_percent"), 60);
    EXPECT_EQ(found.at("rows").at(row).at("evicted_blocks"), 0);
  }
}

TEST_F(TraceProgram, SaysWhatTheTraceIsAndTheMostThatATierCouldWin) {
  const json trace = report({"--capacity", "2"}).at("trace");
  EXPECT_EQ(trace.at("name"), "tiny.jsonl");
  EXPECT_EQ(trace.at("requests"), 5);
  EXPECT_EQ(trace.at("tokens"), 5048);
  EXPECT_EQ(trace.at("accesses"), 10);
  EXPECT_EQ(trace.at("distinct_blocks"), 4);
  EXPECT_EQ(trace.at("block_tokens"), 512);
  EXPECT_EQ(trace.at("block_bytes"), 64 << 20);
  EXPECT_DOUBLE_EQ(trace.at("endless_hit_percent"), 60);
  EXPECT_DOUBLE_EQ(trace.at("endless_loadable_hit_percent"), 60);
}

TEST_F(TraceProgram, CountsAgreeInEveryRowOfEveryPolicy) {
  const json found = report({"--policy", "all", "--capacity", "1,3,2000000000"});
  ASSERT_EQ(found.at("rows").size(), 3U * 11);
  for (const json& row : found.at("rows")) {
    EXPECT_EQ(row.at("verified"), true) << row;
    EXPECT_LE(row.at("loadable_hit_percent").get<double>(), row.at("hit_percent").get<double>());
    EXPECT_LE(row.at("hit_percent").get<double>(), 60) << row;
    EXPECT_NEAR(row.at("saved_s").get<double>() + row.at("load_s").get<double>(),
                row.at("loaded_blocks").get<double>() * 512 / 30e3, 0.01);
    EXPECT_NEAR(row.at("loaded_gb").get<double>(),
                row.at("loaded_blocks").get<double>() * 0.067108864, 1e-9);
  }
}

TEST_F(TraceProgram, SizesInBytesAreWholeBlocks) {
  const json found = report({"--tier-size", "200MB,1GiB", "--capacity", "5", "--policy", "lru"});
  Words capacities;
  for (const json& row : found.at("rows")) capacities.push_back(row.at("capacity_blocks").dump());
  EXPECT_EQ(capacities, (Words{"5", "2", "16"})) << "of 64 MiB";
}

TEST_F(TraceProgram, DefaultCapacitiesAreTheSameTokensWhateverTheBlock) {
  const auto capacities = [&](const Words& arguments) {
    std::vector<std::uint64_t> all;
    const json found = report(joined(arguments, {"--policy", "s3-fifo"}));
    for (const json& row : found.at("rows")) {
      all.push_back(row.at("capacity_blocks"));
    }
    return all;
  };
  using Capacities = std::vector<std::uint64_t>;
  EXPECT_EQ(capacities({}), (Capacities{3'000, 8'000, 16'000, 40'000}));
  EXPECT_EQ(capacities({"--format", "qwen"}), (Capacities{96'000, 256'000, 512'000, 1'280'000}));
  EXPECT_EQ(capacities({"--block-tokens", "64", "--quick"}), (Capacities{24'000}));
}

TEST_F(TraceProgram, SampleIsShownAsTheWholeWouldBe) {
  const auto row = [](const Words& more) {
    const auto [run, report] =
        run_for_report(joined({"trace", "--traffic", "sessions-100", "--policy", "lru"}, more));
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return report.at("rows").at(0);
  };
  const json whole = row({});
  const json sample = row({"--sample", "0.25"});
  EXPECT_EQ(sample.at("capacity_blocks"), whole.at("capacity_blocks"));
  EXPECT_NEAR(sample.at("loadable_hit_percent").get<double>(),
              whole.at("loadable_hit_percent").get<double>(), 5);
  EXPECT_NEAR(sample.at("loaded_gb").get<double>(), whole.at("loaded_gb").get<double>(),
              0.2 * whole.at("loaded_gb").get<double>());
}

TEST_F(TraceProgram, FileMayStandBehindAList) {
  const ProgramRun run = run_program({"trace", "--policy", "lru,sieve", "--capacity", "3", file_});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_TRUE(says(run.out, "sieve")) << run.out;
  EXPECT_TRUE(says(run.out, "every replay's counts agree")) << run.out;
  EXPECT_FALSE(says(run.out, "every byte")) << run.out;
}

TEST_F(TraceProgram, FewPoliciesUnlessMoreAreAskedFor) {
  Words policies;
  const json found = report({"--capacity", "3"});
  for (const json& row : found.at("rows")) {
    policies.push_back(row.at("policy"));
  }
  EXPECT_EQ(policies, (Words{"lru", "arc", "s3-fifo", "adaptive", "optimum"}));
}

TEST_F(TraceProgram, RoundsAreOneRow) {
  const json found =
      report({"--capacity", "3", "--policy", "lru", "--rounds", "5", "--warm-up", "2"});
  EXPECT_EQ(found.at("rows").size(), 1U);
  EXPECT_EQ(found.at("warm_up_rounds"), 2);
}

TEST_F(TraceProgram, AWrongCountIsOneAndIsReported) {
  // Of the first capacity the optimum is replayed first, then LRU.
  const json found =
      report({"--capacity", "2,3", "--policy", "lru,arc", "--corrupt-round", "2"}, 1);
  EXPECT_EQ(found.at("verified"), false);
  EXPECT_EQ(found.at("mismatch"), "round 2: tiny.jsonl, lru, 2 blocks: accesses: 11 instead of 10");
  EXPECT_EQ(found.at("rows").at(0).at("verified"), false);
  EXPECT_EQ(found.at("rows").at(1).at("verified"), true);
}

TEST_F(TraceProgram, BlocksThatDoNotFitTheTokensAreDoubted) {
  EXPECT_FALSE(says(run_program({"trace", file_, "--quick"}).out, "--block-tokens may be wrong"));
  EXPECT_TRUE(says(run_program({"trace", file_, "--quick", "--block-tokens", "16"}).out,
                   "5 requests have more or fewer blocks"));
}

TEST_F(TraceProgram, MadeUpTrafficIsOneOfTheRowsEach) {
  const auto [run, report] =
      run_for_report({"trace", "--traffic", "one-shot,loop-0.9", "--policy", "lru"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  ASSERT_EQ(report.at("rows").size(), 2U);
  EXPECT_EQ(report.at("rows").at(0).at("traffic"), "one-shot");
  EXPECT_DOUBLE_EQ(report.at("rows").at(0).at("hit_percent"), 0);
  EXPECT_TRUE(report.at("rows").at(0).at("percent_of_optimum").is_null());
  EXPECT_EQ(report.at("rows").at(1).at("traffic"), "loop-0.9");
  EXPECT_EQ(report.at("rows").at(1).at("capacity_blocks"), 3000);
}

TEST_F(TraceProgram, BadUsageIsTwoWithAHint) {
  const std::string broken = folder_.write("broken.jsonl", "{\"hash_ids\": [1]}\n{}\n").string();
  const std::vector<std::pair<Words, std::string>> bad = {
      {{}, "needs a FILE"},
      {{"no/such/file"}, "no/such/file"},
      {{broken}, "broken.jsonl:2: expected the array"},
      {{file_, "--format", "csv"}, "mooncake"},
      {{file_, "--format", "weka"}, "block_size"},
      {{file_, "--policy", "best"}, "s3-fifo"},
      {{file_, "--traffic", "all"}, "--traffic"},
      {{"--traffic", "rush-hour"}, "zipf-1.0"},
      {{file_, "--capacity", "0"}, "--capacity"},
      {{file_, "--capacity"}, "--capacity"},
      {{file_, "--tier-size", "1MiB"}, "smaller than a block of 64 MiB"},
      {{file_, "--tier-size", "much"}, "is not a size"},
      {{file_, "--block-bytes", "0"}, "is not a size"},
      {{file_, "--block-bytes", "1MB", "--model", "llama-3.1-8b"}, "leave out one of them"},
      {{file_, "--tp", "2"}, "need --model"},
      {{file_, "--prefill-tokens-per-second", "0"}, "--prefill"},
      {{file_, "--session-gap", "-1"}, "--session-gap"},
      {{file_, "--device", "cuda"}, "measures no device"},
      {{file_, "--what"}, "--what"},
  };
  for (const auto& [arguments, part] : bad) {
    const ProgramRun run = run_program(joined({"trace"}, arguments));
    EXPECT_EQ(run.exit_code, 2) << part;
    EXPECT_TRUE(says(run.err, part)) << part << ": " << run.err;
    EXPECT_TRUE(says(run.err, "--help")) << run.err;
    EXPECT_TRUE(run.out.empty()) << run.out;
  }
}

TEST_F(TraceProgram, HelpSaysUnitsAndWhereDefaultsComeFrom) {
  const ProgramRun help = run_program({"trace", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* part : {"FLOP", "GB/s", "bytes", "512 tokens", "Llama 3.1 8B"}) {
    EXPECT_TRUE(says(help.out, part)) << part;
  }
  EXPECT_TRUE(says(run_program({"--help"}).out, "trace"));
}

}  // namespace
}  // namespace kvferry::bench
