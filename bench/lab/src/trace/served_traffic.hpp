// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trace/request_maker.hpp"

#include <cstdint>

/// Traffic like that of real services. Times are in seconds, lengths in blocks of
/// kMooncakeBlockTokens. A source is named next to the parameters that it gave. Parameters without
/// a source are guesses, and the mixtures (random_mixture()) draw them at random.
namespace kvferry::bench::trace {

/// Coding agents. A session begins with tools and a system prompt. A user's prompt causes some
/// steps of the agent, each of which adds a tool's result. Sometimes the agent starts sub-agents
/// with their own prompts, which grow and end. A context that gets too long is summarised, and
/// begins again after the system prompt.
struct AgentTraffic {
  std::uint32_t num_sessions = 120;
  double session_gap_s = 60;
  // callanjfox/agentic-coding-analysis, docs/EXAMPLE_CONVERSATION.md: 15,000 tokens of tools and
  // 6,000 of system prompt; a sub-agent begins with 13,200 tokens; one prompt made 92 requests in
  // 17 minutes, four sub-agents among them; steps come 2 to 15 s after each other.
  std::uint32_t system_blocks = 41;
  std::uint32_t subagent_blocks = 25;
  double steps = 15;      ///< Mean number of the agent's steps for each prompt.
  double step_gap_s = 8;  ///< Median time of model and tool.
  double step_blocks = 1.5;
  double subagents = 0.25;  ///< Probability that a prompt starts some.
  double prompts = 6;       ///< Mean number of a user's prompts in a session.
  double think_s = 90;      ///< Median time until the user's next prompt.
  std::uint32_t max_blocks = 300;
};
[[nodiscard]] TimedRequests agents(RequestMaker& maker, const AgentTraffic& traffic = {});

/// Conversations of people. The answer is part of the next prompt. If the template removes its
/// thinking, the blocks of the answer differ from those that were computed.
struct ChatTraffic {
  std::uint32_t num_sessions = 1'500;
  double session_gap_s = 1;
  std::uint32_t num_systems = 20;  ///< System prompts, of differing popularity.
  std::uint32_t system_blocks = 3;
  // KVCache Cache in the Wild (arXiv 2506.02634), trace A: most requests are the only one of their
  // conversation, and 80 % of the reuse happens within ten minutes.
  double turns = 3;
  double think_s = 100;
  double prompt_blocks = 3;
  double answer_blocks = 1.5;
  double thinks = 0;  ///< Share of sessions whose thinking is stripped.
};
[[nodiscard]] TimedRequests chat(RequestMaker& maker, const ChatTraffic& traffic = {});

/// Questions about retrieved documents. The documents are ordered by relevance, so two prompts
/// share a prefix only if their first documents are the same.
struct RagTraffic {
  std::uint32_t num_requests = 12'000;
  double gap_s = 0.25;
  std::uint32_t num_documents = 1'500;
  double exponent = 0.9;
  std::uint32_t document_blocks = 3;
  std::uint32_t num_retrieved = 4;
  double reordered = 0.3;  ///< Share of questions whose documents have another order.
};
[[nodiscard]] TimedRequests rag(RequestMaker& maker, const RagTraffic& traffic = {});

/// Jobs of many requests with one long prefix, sent at the same time. KVCache Cache in the Wild,
/// trace B: 97 % of the hits of an API are on prompts that single requests share, and 80 % of them
/// come within ten seconds.
struct BatchTraffic {
  std::uint32_t num_jobs = 60;
  double job_gap_s = 60;
  double job_requests = 150;
  std::uint32_t prefix_blocks = 12;
  double own_blocks = 4;
  double gap_s = 0.3;
  double comes_again = 0.3;  ///< Probability that a job repeats an earlier one, with new data.
};
[[nodiscard]] TimedRequests batches(RequestMaker& maker, const BatchTraffic& traffic = {});

/// Moves the times of `timed` to hours at which people are awake: of each day of `day_s` seconds,
/// the first half gets the given `share`.
void by_day(TimedRequests& timed, double day_s, double share);

}  // namespace kvferry::bench::trace
