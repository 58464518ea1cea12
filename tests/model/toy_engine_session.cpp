// SPDX-License-Identifier: Apache-2.0
#include "toy_engine.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

/// Streaming sessions, and resets of running requests.
namespace kvferry::connector {
namespace {

/// A turn's tokens and answer at most: with kMaxPrompt and kMaxOutput it is for the whole session.
constexpr std::uint32_t kMaxSession = 32;

}  // namespace

bool ToyEngine::has_session() const {
  return std::any_of(requests_.begin(), requests_.end(), [](const ToyRequest& request) {
    return request.num_turns_left > 0 || request.state == ToyState::kBetweenTurns;
  });
}

void ToyEngine::end_turn(ToyRequest& request) {
  std::erase(running_, &request);
  using Keeps = ToyRequest::Keeps;
  const std::size_t num_hashes =
      request.end_turn(one_in(2) ? Keeps::kAllButTheLast : Keeps::kComputed);
  totals_.hashes_taken_back += num_hashes;
  if (num_hashes > 1) ++totals_.long_take_backs;
}

void ToyEngine::begin_turn(ToyRequest& request) {
  const std::uint32_t room = kMaxSession - std::min(request.num_known, kMaxSession);
  if (room < 2) {
    scheduler_->on_finished(request.id);
    request.num_turns_left = 0;
    finish(request);
    return;
  }
  std::vector<std::uint32_t> tokens(1 + below(std::min(room - 1, 8U)));
  for (std::uint32_t& token : tokens) token = below(3);
  const auto num_tokens = static_cast<std::uint32_t>(tokens.size());
  request.begin_turn(tokens, 1 + below(room - num_tokens));
  waiting_.push_back(&request);
  ++totals_.turns;
}

void ToyEngine::preempt_before_its_last_sample() {
  // By itself it happens once in a thousand turns.
  const auto last = std::find_if(running_.begin(), running_.end(), [](const ToyRequest* request) {
    return request->num_turns_left > 0 && request->num_placeholders > 0 &&
           request->num_known + request->num_placeholders >= request->num_last;
  });
  if (last != running_.end() && one_in(3)) preempt(**last);
}

void ToyEngine::reset_running() {
  // vLLM's reset_prefix_cache(reset_running_requests=True): what steps in flight sample is dropped.
  while (!running_.empty()) {
    ToyRequest& request = *running_.back();
    preempt(request);
    request.drop_samples();
  }
  pool_.uncache_all();
  ++totals_.running_resets;
}

}  // namespace kvferry::connector
