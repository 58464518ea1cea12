// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/error.hpp"

#include "scratch_folder.hpp"
#include "trace/read_trace.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvferry::bench::trace {
namespace {

using Blocks = std::vector<std::uint32_t>;

Trace read(const std::string& text, const ReadOptions& options = {}) {
  const ScratchFolder folder;
  return read_trace(folder.write("trace.jsonl", text), options);
}

Blocks blocks(const Trace& trace, std::size_t request) {
  const auto found = trace.request(request);
  return {found.begin(), found.end()};
}

std::vector<Blocks> requests(const Trace& trace) {
  std::vector<Blocks> all;
  for (std::size_t i = 0; i < trace.num_requests(); ++i) all.push_back(blocks(trace, i));
  return all;
}

TEST(ReadMooncake, NumbersBlocksInOrderOfAppearance) {
  const Trace trace = read(
      "{\"timestamp\": 0, \"hash_ids\": [46, 7, 12345678901]}\n"
      "\n"
      "{\"hash_ids\":[46,7,9],\"input_length\":1500}\r\n"
      "{\"hash_ids\": []}");
  EXPECT_EQ(requests(trace), (std::vector<Blocks>{{0, 1, 2}, {0, 1, 3}, {}}));
  EXPECT_EQ(trace.num_distinct(), 4U);
  EXPECT_EQ(trace.num_accesses(), 6U);
  EXPECT_EQ(trace.block_tokens(), 512U);
}

TEST(ReadMooncake, TheLastBlockHasTheTokensThatAreLeft) {
  const Trace trace = read(
      "{\"input_length\": 1200, \"output_length\": 5, \"hash_ids\": [1, 2, 3]}\n"
      "{\"hash_ids\": [1, 2]}\n");
  EXPECT_EQ(trace.prefix_tokens(0, 0), 0U);
  EXPECT_EQ(trace.prefix_tokens(0, 2), 1024U);
  EXPECT_EQ(trace.prefix_tokens(0, 3), 1200U);
  EXPECT_EQ(trace.prefix_tokens(1, 2), 1024U) << "without input_length its blocks are full";
  EXPECT_EQ(trace.num_tokens(), 1200U + 1024U);
  EXPECT_EQ(trace.num_misfits(), 0U);
}

TEST(ReadMooncake, BlocksThatDoNotFitTheTokensAreCounted) {
  const std::string text = "{\"input_length\": 64, \"hash_ids\": [1, 2, 3, 4]}\n";
  EXPECT_EQ(read(text).num_misfits(), 1U);
  ReadOptions options;
  options.block_tokens = 16;
  EXPECT_EQ(read(text, options).num_misfits(), 0U);
}

TEST(ReadMooncake, BlockNamedTwiceByOneRequestCountsOnce) {
  const Trace trace = read("{\"hash_ids\": [1, 2, 1]}\n{\"hash_ids\": [1]}\n");
  EXPECT_EQ(requests(trace), (std::vector<Blocks>{{0, 1}, {0}}));
}

TEST(ReadMooncake, WhatElseALineSaysIsSkipped) {
  const Trace trace = read(
      "{\"a\": {\"hash_ids\": [9, {}], \"b\": \"]}\\\"{\"}, \"hash_ids\": [1], \"c\": [[], -1e3, "
      "true, null]}");
  EXPECT_EQ(requests(trace), (std::vector<Blocks>{{0}}));
}

// A line as the README of the traces shows it.
TEST(ReadQwen, BlocksHaveSixteenTokens) {
  const Trace trace = read(
      "{\"chat_id\": 159, \"parent_chat_id\": -1, \"timestamp\": 61.114, \"input_length\": 40, "
      "\"output_length\": 132, \"type\": \"text\", \"turn\": 2, \"hash_ids\": [1089, 1090, 1091]}\n"
      "{\"chat_id\": 160, \"parent_chat_id\": 159, \"timestamp\": 62.5, \"input_length\": 33, "
      "\"output_length\": 1, \"type\": \"search\", \"turn\": 3, \"hash_ids\": [1089, 1090, 7]}\n");
  EXPECT_EQ(trace.block_tokens(), 16U);
  EXPECT_EQ(requests(trace), (std::vector<Blocks>{{0, 1, 2}, {0, 1, 3}}));
  EXPECT_EQ(trace.prefix_tokens(0, 3), 40U);
  EXPECT_EQ(trace.num_misfits(), 0U);
}

std::string session(const std::string& scope, const std::string& entries) {
  return R"({"id":"s","models":["m"],"block_size":64,"hash_id_scope":")" + scope +
         R"(","tool_tokens":1,"requests":[)" + entries + "]}\n";
}

std::string entry(const std::string& t, const std::string& ids) {
  return R"({"t":)" + t + R"(,"type":"s","model":"m","in":130,"out":8,"hash_ids":[)" + ids +
         R"(],"input_types":["text"],"output_types":[],"stop":""})";
}

TEST(ReadWeka, SubagentsStandWhereTheirTimesPutThem) {
  // The parent goes on while its subagent's subagent works.
  const std::string inner = R"({"t":2,"type":"subagent","agent_id":"b","requests":[)" +
                            entry("2.5", "20") + "," + entry("9", "21") + "]}";
  const Trace trace = read(
      session("local", entry("0.0", "1,2") + "," +
                           R"({"t":1,"type":"subagent","agent_id":"a","subagent_type":"Explore",)" +
                           R"("duration_ms":null,"requests":[)" + entry("1.5", "10") + "," + inner +
                           "],\"models\":[\"m\"]}," + entry("8", "1,2,3")));
  // Numbers are given in the order of the file: 1, 2 are 0, 1; 10 is 2; 20, 21 are 3, 4; 3 is 5.
  EXPECT_EQ(requests(trace), (std::vector<Blocks>{{0, 1}, {2}, {3}, {0, 1, 5}, {4}}));
  EXPECT_EQ(trace.block_tokens(), 64U);
  EXPECT_EQ(trace.prefix_tokens(0, 2), 128U) << "hash_ids name whole blocks only";
  EXPECT_EQ(trace.num_misfits(), 3U) << "130 tokens are two blocks, or three with the partial one";
}

TEST(ReadWeka, SessionsBeginOneAfterTheOtherAndInterleave) {
  const std::string text = session("global", entry("0", "1") + "," + entry("70", "2")) +
                           session("global", entry("0", "3") + "," + entry("10", "4"));
  ReadOptions options;
  options.session_gap_s = 60;
  EXPECT_EQ(requests(read(text, options)), (std::vector<Blocks>{{0}, {2}, {1}, {3}}))
      << "of the same second: the earlier session first";
  options.session_gap_s = 0;
  EXPECT_EQ(requests(read(text, options)), (std::vector<Blocks>{{0}, {2}, {3}, {1}}));
  options.session_gap_s = 100;
  EXPECT_EQ(requests(read(text, options)), (std::vector<Blocks>{{0}, {1}, {2}, {3}}));
}

TEST(ReadWeka, LocalIdsAreOtherBlocksInAnotherSession) {
  const auto twice = [](const std::string& scope) {
    return requests(read(session(scope, entry("0", "1,2")) + session(scope, entry("0", "1,2"))));
  };
  EXPECT_EQ(twice("global"), (std::vector<Blocks>{{0, 1}, {0, 1}}));
  EXPECT_EQ(twice("local"), (std::vector<Blocks>{{0, 1}, {2, 3}}));
}

TEST(ReadWeka, OlderFilesSayNoScopeAndAreLocal) {
  const std::string text = R"({"id":"t","block_size":64,"requests":[)" + entry("0", "1") + "]}\n";
  EXPECT_EQ(requests(read(text + text)), (std::vector<Blocks>{{0}, {1}}));
}

TEST(ReadWeka, ASessionMayHaveManyLines) {
  const std::string text = "\n{\"block_size\": 64,\n\"requests\": [\n" + entry("0", "1,2") + ",\n" +
                           entry("1", "1,3") + "]\n}\n";
  EXPECT_EQ(requests(read(text)), (std::vector<Blocks>{{0, 1}, {0, 2}}));
}

TEST(ReadWeka, ADirectoryIsItsFilesByName) {
  const ScratchFolder folder;
  folder.write("trace_2.json", session("local", entry("0", "1,2")));
  folder.write("trace_1.json", session("local", entry("0", "1")));
  folder.write("notes.txt", "no session");
  const Trace trace = read_trace(folder.path());
  EXPECT_EQ(requests(trace), (std::vector<Blocks>{{0}, {1, 2}}));
  ReadOptions options;
  options.format = TraceFormat::kQwen;
  EXPECT_THROW(static_cast<void>(read_trace(folder.path(), options)), ConfigError);
}

void expect_error(const std::string& text, const std::vector<std::string>& parts,
                  const ReadOptions& options = {}) {
  try {
    static_cast<void>(read(text, options));
    ADD_FAILURE() << "read: " << text;
  } catch (const ConfigError& error) {
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << error.what() << " does not say " << part;
    }
  }
}

TEST(ReadTrace, SaysWhichLineIsWrongAndWhatWasExpected) {
  expect_error("{\"hash_ids\": [1]}\n{\"input_length\": 3}\n",
               {"trace.jsonl:2: ", "the array \"hash_ids\""});
  expect_error("{\"hash_ids\": [1, \"a\"]}\n",
               {".jsonl:1: ", "expected an id, a whole number, found '\"a\"'"});
  expect_error("{\"hash_ids\": [1]}\n{\"hash_ids\": [1, 2\n",
               {".jsonl:2: expected JSON, found '{\"hash_ids\": [1, 2'"});
  expect_error("{\"hash_ids\": [1, 2\n", {".jsonl:1: expected JSON"});
  for (const char* skipped : {"[}", "[}}", "{]", "[1 2]", "nul", "01", "\"\\x\"", "[1,]"}) {
    expect_error(std::string("{\"extra\": ") + skipped + ", \"hash_ids\": [1]}\n",
                 {".jsonl:1: expected JSON"});
  }
  expect_error("{\"hash_ids\": [1.5]}", {"a whole number, found '1.5"});
  expect_error("{\"hash_ids\": [-1]}", {"a whole number, found '-1"});
  expect_error("{\"hash_ids\": 7}", {"hash_ids, an array"});
  expect_error("{\"hash_ids\": [1]}\n\n{\"hash_ids\": [1], \"input_length\": \"long\"}",
               {".jsonl:3: ", "input_length"});
  expect_error("{\"hash_ids\": [1]}\n[2]", {"expected an object, found '[2]'"});
  expect_error("{\"hash_ids\": [1], \"type}", {".jsonl:1: expected JSON"});
  expect_error("timestamp,hash_ids\n1,2\n",
               {".jsonl:1: expected JSON, found 'timestamp,hash_ids'"});
  expect_error("{\"prompt\": \"hello\"}", {"hash_ids", "requests"});
  expect_error("\n", {"empty"});
  expect_error("{\"hash_ids\": []}", {"no blocks"});
  EXPECT_THROW(static_cast<void>(read_trace("no/such/file")), ConfigError);
}

TEST(ReadTrace, SaysWhatIsWrongWithASession) {
  expect_error(session("moon", entry("0", "1")), {"hash_id_scope is 'moon'"});
  expect_error(R"({"requests": []})", {"block_size and requests"});
  expect_error(R"({"block_size": 0, "requests": []})", {"block_size is 0"});
  expect_error(session("local", "\n" + entry("0", "1") + ",\n{\"type\": \"n\", \"in\": 3}"),
               {".jsonl:1: ", "t (seconds)"});
  expect_error(session("local", R"({"t": 0, "type": "subagent"})"),
               {"a subagent and its requests"});
  expect_error(session("local", entry("0", "1")) + session("global", entry("0", "1")),
               {".jsonl:2: ", "in the sessions before"});
  ReadOptions options;
  options.block_tokens = 16;
  expect_error(session("local", entry("0", "1")), {"have 64 tokens, not 16"}, options);
}

TEST(ReadTrace, FormatsHaveNames) {
  for (const TraceFormat format :
       {TraceFormat::kMooncake, TraceFormat::kQwen, TraceFormat::kWeka}) {
    EXPECT_EQ(trace_format_from(to_string(format)), format);
  }
  EXPECT_EQ(trace_format_from("auto"), std::nullopt);
  EXPECT_THROW(static_cast<void>(trace_format_from("csv")), ConfigError);
}

}  // namespace
}  // namespace kvferry::bench::trace
