// SPDX-License-Identifier: Apache-2.0
#include "trace/served_traffic.hpp"

#include <algorithm>
#include <cmath>

namespace kvferry::bench::trace {
namespace {

constexpr double kStepSpread = 0.8;
constexpr double kThinkSpread = 1.3;
constexpr double kLengthSpread = 0.9;
constexpr std::uint32_t kMostAtOnce = 64;

/// A random count of at least one, `mean` on average.
std::uint32_t count_of(RequestMaker& maker, double mean) {
  return 1 + static_cast<std::uint32_t>(maker.wait(std::max(mean - 1, 0.001)));
}

class AgentSessions {
 public:
  AgentSessions(RequestMaker& maker, const AgentTraffic& traffic)
      : maker_(maker),
        traffic_(traffic),
        system_(maker.document(traffic.system_blocks)),
        subagent_(maker.document(traffic.subagent_blocks)) {}

  void session(double at) {
    Request context = system_;
    maker_.extend(context, maker_.blocks_around(4, kLengthSpread, kMostAtOnce));
    for (std::uint32_t left = count_of(maker_, traffic_.prompts); left > 0; --left) {
      at = prompt(context, at) + maker_.around(traffic_.think_s, kThinkSpread);
    }
  }
  TimedRequests take() { return std::move(requests_); }

 private:
  double prompt(Request& context, double at) {
    if (maker_.chance(traffic_.subagents)) {
      for (std::uint32_t left = maker_.between(1, 4); left > 0; --left) {
        Request own = subagent_;
        steps(own, at, count_of(maker_, traffic_.steps));
      }
    }
    return steps(context, at, count_of(maker_, traffic_.steps));
  }
  double steps(Request& context, double at, std::uint32_t count) {
    for (; count > 0; --count) {
      // Most steps add a few hundred tokens. Some add a whole file.
      maker_.extend(context,
                    maker_.blocks_around(traffic_.step_blocks, kLengthSpread, kMostAtOnce));
      if (context.size() > traffic_.max_blocks) {
        context = system_;
        maker_.extend(context, maker_.between(10, 30));
      }
      requests_.push_back({at, context});
      at += maker_.around(traffic_.step_gap_s, kStepSpread);
    }
    return at;
  }

  RequestMaker& maker_;
  const AgentTraffic& traffic_;
  Request system_;
  Request subagent_;
  TimedRequests requests_;
};

}  // namespace

TimedRequests agents(RequestMaker& maker, const AgentTraffic& traffic) {
  AgentSessions sessions(maker, traffic);
  double at = 0;
  for (std::uint32_t i = 0; i < traffic.num_sessions; ++i) {
    sessions.session(at);
    at += maker.wait(traffic.session_gap_s);
  }
  return sessions.take();
}

TimedRequests chat(RequestMaker& maker, const ChatTraffic& traffic) {
  const Requests systems = maker.documents(traffic.num_systems, traffic.system_blocks);
  const Popularity popularity(traffic.num_systems, 1);
  TimedRequests requests;
  double begin = 0;
  for (std::uint32_t i = 0; i < traffic.num_sessions; ++i) {
    double at = begin;
    begin += maker.wait(traffic.session_gap_s);
    Request session = systems[popularity.draw(maker)];
    const bool thinks = maker.chance(traffic.thinks);
    for (std::uint32_t left = count_of(maker, traffic.turns); left > 0; --left) {
      maker.extend(session, maker.blocks_around(traffic.prompt_blocks, kLengthSpread, kMostAtOnce));
      Request computed = session;
      maker.extend(computed, maker.blocks_around(traffic.answer_blocks * (thinks ? 3 : 1),
                                                 kLengthSpread, kMostAtOnce));
      requests.push_back({at, computed});
      if (thinks) {
        maker.extend(session,
                     maker.blocks_around(traffic.answer_blocks, kLengthSpread, kMostAtOnce));
      } else {
        session = computed;
      }
      at += maker.around(traffic.think_s, kThinkSpread);
    }
  }
  return requests;
}

TimedRequests rag(RequestMaker& maker, const RagTraffic& traffic) {
  const Request system = maker.document(2);
  const Popularity popularity(traffic.num_documents, traffic.exponent);
  // After other documents, a document has other blocks: the hash of a block covers its prefix.
  std::vector<std::pair<std::vector<std::uint32_t>, Request>> known;
  std::vector<std::vector<std::uint32_t>> by_first(traffic.num_documents);
  const auto blocks_of = [&](const std::vector<std::uint32_t>& documents) {
    for (const std::uint32_t index : by_first[documents.front()]) {
      if (known[index].first == documents) return known[index].second;
    }
    by_first[documents.front()].push_back(static_cast<std::uint32_t>(known.size()));
    known.emplace_back(documents, maker.document(traffic.document_blocks));
    return known.back().second;
  };
  TimedRequests requests;
  double at = 0;
  for (std::uint32_t i = 0; i < traffic.num_requests; ++i) {
    // The other documents that are relevant together with the first are mostly the same ones.
    const std::uint32_t first = popularity.draw(maker);
    std::vector<std::uint32_t> retrieved;
    for (std::uint32_t k = 0; k < traffic.num_retrieved; ++k) {
      retrieved.push_back((first + k * (1 + first % 7)) % traffic.num_documents);
    }
    if (maker.chance(traffic.reordered)) {
      for (std::uint32_t k = traffic.num_retrieved; k > 1; --k) {
        std::swap(retrieved[k - 1], retrieved[maker.below(k)]);
      }
    }
    Request request = system;
    std::vector<std::uint32_t> prefix;
    for (const std::uint32_t document : retrieved) {
      prefix.push_back(document);
      const Request blocks = blocks_of(prefix);
      request.insert(request.end(), blocks.begin(), blocks.end());
    }
    maker.extend(request, 1);
    requests.push_back({at, std::move(request)});
    at += maker.wait(traffic.gap_s);
  }
  return requests;
}

TimedRequests batches(RequestMaker& maker, const BatchTraffic& traffic) {
  Requests prefixes;
  TimedRequests requests;
  double begin = 0;
  for (std::uint32_t i = 0; i < traffic.num_jobs; ++i) {
    const bool again = !prefixes.empty() && maker.chance(traffic.comes_again);
    if (!again) prefixes.push_back(maker.document(traffic.prefix_blocks));
    const Request prefix = again
                               ? prefixes[maker.below(static_cast<std::uint32_t>(prefixes.size()))]
                               : prefixes.back();
    double at = begin;
    for (std::uint32_t left = count_of(maker, traffic.job_requests); left > 0; --left) {
      Request request = prefix;
      maker.extend(request, maker.blocks_around(traffic.own_blocks, kLengthSpread, kMostAtOnce));
      requests.push_back({at, std::move(request)});
      at += maker.wait(traffic.gap_s);
    }
    begin += maker.wait(traffic.job_gap_s);
  }
  return requests;
}

void by_day(TimedRequests& timed, double day_s, double share) {
  for (TimedRequest& one : timed) {
    const double day = std::floor(one.seconds / day_s);
    const double within = one.seconds / day_s - day;
    // The requests of the first `share` of a day are spread evenly over half of the day.
    const double moved =
        within < share ? 0.5 * within / share : 0.5 + 0.5 * (within - share) / (1 - share);
    one.seconds = day_s * (day + moved);
  }
}

}  // namespace kvferry::bench::trace
