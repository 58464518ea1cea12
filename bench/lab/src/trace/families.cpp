// SPDX-License-Identifier: Apache-2.0
#include "trace/families.hpp"

#include "trace/plain_traffic.hpp"
#include "trace/request_maker.hpp"
#include "trace/served_traffic.hpp"

#include <algorithm>
#include <array>

namespace kvferry::bench::trace {
namespace {

/// People use the engine by day and jobs by night, over three "days" of half an hour each.
Requests days(RequestMaker& maker) {
  constexpr double kDay = 1'800;
  TimedRequests people = chat(maker, {.num_sessions = 5'400, .turns = 4, .thinks = 0.5});
  TimedRequests jobs = batches(maker, {.num_jobs = 90});
  by_day(people, kDay, 0.9);
  by_day(jobs, kDay, 0.1);
  return in_order(people + jobs);
}

Trace to_trace(const Requests& requests) {
  Trace trace("family");
  for (const Request& request : requests) trace.add_request(request);
  return trace;
}

template <class Make>
Trace made(std::uint64_t seed, const Make& make) {
  RequestMaker maker(seed);
  return to_trace(make(maker));
}

#define KVFERRY_FAMILY(name, about, expression)                                      \
  Family {                                                                           \
    name, about, [](std::uint64_t seed) {                                            \
      return made(seed, [](RequestMaker& maker) -> Requests { return expression; }); \
    }                                                                                \
  }

const std::array kFamilies{
    KVFERRY_FAMILY("zipf-0.7", "questions about 2,000 documents", zipf(maker, 2000, 0.7, 20000)),
    KVFERRY_FAMILY("zipf-1.0", "questions about 2,000 documents", zipf(maker, 2000, 1.0, 20000)),
    KVFERRY_FAMILY("zipf-1.0-long-tail", "questions about 20,000 documents",
                   zipf(maker, 20000, 1.0, 20000)),
    KVFERRY_FAMILY("loop-0.9", "a loop of 0.9 of the tier", loop(maker, 225, 20000)),
    KVFERRY_FAMILY("loop-1.1", "a loop of 1.1 of the tier", loop(maker, 275, 20000)),
    KVFERRY_FAMILY("loop-1.5", "a loop of 1.5 of the tier", loop(maker, 375, 20000)),
    KVFERRY_FAMILY("loop-3", "a loop of three tiers", loop(maker, 750, 20000)),
    KVFERRY_FAMILY("one-shot", "prompts that nobody sends twice", one_shot(maker, 14, 20000)),
    KVFERRY_FAMILY("sessions-100", "100 conversations at a time", sessions(maker, 100, 0.1, 20000)),
    KVFERRY_FAMILY("sessions-300", "300 conversations at a time", sessions(maker, 300, 0.1, 20000)),
    KVFERRY_FAMILY("sessions-1000", "1,000 short conversations at a time",
                   sessions(maker, 1000, 0.2, 20000)),
    KVFERRY_FAMILY("long-sessions", "300 conversations of 33 turns",
                   sessions(maker, 300, 0.03, 10000)),
    KVFERRY_FAMILY("sessions+one-shot", "a mixture of both",
                   mix(maker, {sessions(maker, 100, 0.1, 10000), one_shot(maker, 20, 10000)})),
    KVFERRY_FAMILY("zipf+one-shot", "a mixture of both",
                   mix(maker, {zipf(maker, 400, 0.8, 10000), one_shot(maker, 20, 10000)})),
    KVFERRY_FAMILY("zipf+loop", "a mixture of both",
                   mix(maker, {loop(maker, 200, 10000), zipf(maker, 1000, 0.9, 10000)})),
    KVFERRY_FAMILY("phases", "conversations, one-shot, zipf, other conversations",
                   sessions(maker, 100, 0.1, 8000) + one_shot(maker, 20, 5000) +
                       zipf(maker, 1000, 0.9, 8000) + sessions(maker, 300, 0.2, 8000)),
    KVFERRY_FAMILY("short-phases", "conversations and zipf with one-shot, three times",
                   mix(maker, {zipf(maker, 200, 0.8, 1500), one_shot(maker, 30, 1500)}) +
                       sessions(maker, 100, 0.1, 3000) +
                       mix(maker, {zipf(maker, 200, 0.8, 1500), one_shot(maker, 30, 1500)}) +
                       sessions(maker, 100, 0.1, 3000) +
                       mix(maker, {zipf(maker, 200, 0.8, 1500), one_shot(maker, 30, 1500)}) +
                       sessions(maker, 100, 0.1, 3000)),
    KVFERRY_FAMILY("agents", "coding agents with tools, sub-agents and users that think",
                   in_order(agents(maker))),
    KVFERRY_FAMILY(
        "many-agents", "agents that come twice as often, with users that think twice as long",
        in_order(agents(maker,
                        {.num_sessions = 160, .session_gap_s = 30, .steps = 10, .think_s = 180}))),
    KVFERRY_FAMILY("chat", "people whose prompts keep the answers", in_order(chat(maker))),
    KVFERRY_FAMILY("thinking-chat", "people, with thinking that is removed from the answers",
                   in_order(chat(maker, {.turns = 5, .thinks = 1}))),
    KVFERRY_FAMILY("rag", "retrieved documents in changing order", in_order(rag(maker))),
    KVFERRY_FAMILY("batches", "jobs of many requests with one prefix", in_order(batches(maker))),
    KVFERRY_FAMILY("days", "chat by day and jobs by night, three times", days(maker)),
};

#undef KVFERRY_FAMILY

}  // namespace

std::span<const Family> families() { return kFamilies; }

}  // namespace kvferry::bench::trace
