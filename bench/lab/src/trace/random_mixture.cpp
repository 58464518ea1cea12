// SPDX-License-Identifier: Apache-2.0
#include "trace/random_mixture.hpp"

#include "trace/plain_traffic.hpp"
#include "trace/request_maker.hpp"
#include "trace/served_traffic.hpp"

#include <array>

namespace kvferry::bench::trace {
namespace {

/// More requests than the mixture takes of any kind.
constexpr std::uint32_t kEnough = 6'000;

/// Accesses of a trace whose blocks are divided.
constexpr std::uint64_t kMostDivided = 400'000;

TimedRequests evenly(const Requests& requests) {
  TimedRequests timed;
  for (const Request& one : requests) timed.push_back({static_cast<double>(timed.size()), one});
  return timed;
}

TimedRequests random_zipf(RequestMaker& maker) {
  const std::uint32_t documents = maker.between(100, 6'000);
  return evenly(zipf(maker, documents, maker.uniform(0.5, 1.2), kEnough));
}
TimedRequests random_loop(RequestMaker& maker) {
  return evenly(loop(maker, maker.between(40, 800), kEnough));
}
TimedRequests random_one_shot(RequestMaker& maker) {
  return evenly(one_shot(maker, maker.between(5, 40), kEnough));
}
TimedRequests random_sessions(RequestMaker& maker) {
  const std::uint32_t num_alive = maker.between(20, 600);
  return evenly(sessions(maker, num_alive, maker.uniform(0.02, 0.4), kEnough));
}
TimedRequests random_agents(RequestMaker& maker) {
  return agents(maker, {.num_sessions = 60,
                        .session_gap_s = maker.uniform(10, 120),
                        .steps = maker.uniform(4, 20),
                        .step_gap_s = maker.uniform(3, 15),
                        .step_blocks = maker.uniform(0.5, 3),
                        .subagents = maker.uniform(0, 0.6),
                        .prompts = maker.uniform(2, 10),
                        .think_s = maker.uniform(20, 400),
                        .max_blocks = maker.between(120, 400)});
}
TimedRequests random_chat(RequestMaker& maker) {
  return chat(maker, {.num_sessions = 2'000,
                      .session_gap_s = maker.uniform(0.3, 3),
                      .num_systems = maker.between(1, 60),
                      .system_blocks = maker.between(1, 10),
                      .turns = maker.uniform(1.5, 8),
                      .think_s = maker.uniform(30, 300),
                      .prompt_blocks = maker.uniform(1, 6),
                      .answer_blocks = maker.uniform(0.5, 3),
                      .thinks = maker.uniform()});
}
TimedRequests random_rag(RequestMaker& maker) {
  return rag(maker, {.num_requests = kEnough,
                     .num_documents = maker.between(100, 3'000),
                     .exponent = maker.uniform(0.6, 1.2),
                     .document_blocks = maker.between(1, 6),
                     .num_retrieved = maker.between(2, 6),
                     .reordered = maker.uniform()});
}
TimedRequests random_batches(RequestMaker& maker) {
  return batches(maker, {.num_jobs = 60,
                         .job_gap_s = maker.uniform(10, 120),
                         .job_requests = maker.uniform(20, 200),
                         .prefix_blocks = maker.between(4, 40),
                         .own_blocks = maker.uniform(1, 8),
                         .comes_again = maker.uniform(0, 0.7)});
}

struct Kind {
  const char* name;
  TimedRequests (*make)(RequestMaker&);
};
constexpr std::array kKinds{Kind{"zipf", random_zipf},         Kind{"loop", random_loop},
                            Kind{"one-shot", random_one_shot}, Kind{"sessions", random_sessions},
                            Kind{"agents", random_agents},     Kind{"chat", random_chat},
                            Kind{"rag", random_rag},           Kind{"batches", random_batches}};

/// The first requests that together have `num_accesses` blocks, at times scaled to 0 to 1.
TimedRequests cut(TimedRequests timed, std::size_t num_accesses) {
  sort_by_time(timed);
  std::size_t count = 0;
  for (std::size_t left = num_accesses; count < timed.size() && left > 0; ++count) {
    left -= std::min(left, timed[count].blocks.size());
  }
  timed.resize(count);
  const double end = timed.back().seconds + 1e-9;
  for (TimedRequest& one : timed) one.seconds /= end;
  return timed;
}

/// Divides each block into `parts`, as an engine with smaller blocks has them. Prompts become
/// longer than a small tier.
Request divided(const Request& request, std::uint32_t parts) {
  Request finer;
  finer.reserve(request.size() * parts);
  for (const std::uint32_t block : request) {
    for (std::uint32_t part = 0; part < parts; ++part) finer.push_back(block * parts + part);
  }
  return finer;
}

}  // namespace

Mixture random_mixture(std::uint64_t seed) {
  RequestMaker maker(seed);
  Mixture mixture{"", Trace("mixture " + std::to_string(seed))};
  Requests requests;
  for (std::uint32_t phases = maker.between(1, 3); phases > 0; --phases) {
    TimedRequests phase;
    const double by_night = maker.chance(0.3) ? maker.uniform(0.05, 0.5) : 0.5;
    const double num_days = maker.uniform(1, 4);
    std::string about;
    for (std::uint32_t kinds = maker.between(1, 3); kinds > 0; --kinds) {
      const Kind& kind = kKinds[maker.below(kKinds.size())];
      TimedRequests made = cut(kind.make(maker), maker.between(15'000, 60'000));
      by_day(made, 1 / num_days, maker.chance(0.5) ? by_night : 1 - by_night);
      phase = phase + made;
      about += (about.empty() ? "" : "+") + std::string(kind.name);
    }
    for (Request& request : in_order(std::move(phase))) requests.push_back(std::move(request));
    mixture.about += (mixture.about.empty() ? "" : ", then ") + about;
  }
  const std::uint32_t parts = maker.chance(0.25) ? maker.between(2, 12) : 1;
  if (parts > 1) mixture.about += ", in " + std::to_string(parts) + " parts of each block";
  for (const Request& request : requests) {
    if (parts > 1 && mixture.trace.num_accesses() > kMostDivided) break;
    mixture.trace.add_request(divided(request, parts));
  }
  return mixture;
}

}  // namespace kvferry::bench::trace
