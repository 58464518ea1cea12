// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fake_engine.hpp"
#include "toy_rank.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace kvferry::connector {

/// Tokens at most of a request's prompt, and of its answer.
inline constexpr std::uint32_t kMaxPrompt = 22;
inline constexpr std::uint32_t kMaxOutput = 10;

enum class ToyState : std::uint8_t {
  kWaiting,
  kLoading,
  kReady,  ///< Its load ended; waits for its first step.
  kRunning,
  kBetweenTurns,  ///< A session that keeps its blocks and waits for its client.
  kZombie         ///< Ended while loading: its blocks are kept until the load is told.
};

using ToyTable = std::vector<std::uint32_t>;

/// A request of the toy engine. What it samples follows from what came before, so that requests
/// with one prompt stay alike, and the KV of a token follows from all tokens up to it and from the
/// weights each was computed with.
struct ToyRequest {
  ToyRequest(std::string name, std::uint64_t number, std::vector<std::uint32_t> prompt,
             std::uint32_t max_output)
      : id(std::move(name)),
        uid(number),
        num_known(static_cast<std::uint32_t>(prompt.size())),
        num_last(num_known + max_output),
        truth(std::move(prompt)) {
    know(num_known);
  }

  std::string id;
  std::uint64_t uid;        ///< One per incarnation.
  std::uint32_t num_known;  ///< Tokens that the scheduler has seen.
  std::uint32_t num_last;   ///< Tokens with which it stops.
  ToyState state = ToyState::kWaiting;
  std::vector<ToyTable> tables;        ///< By KV cache group and position.
  std::uint32_t num_computed = 0;      ///< Scheduled up to here.
  std::uint32_t num_placeholders = 0;  ///< Samples of steps whose output is not processed yet.
  RequestLimits limits;                ///< Of a session none.
  std::uint32_t num_turns_left = 0;    ///< Of a session, behind this one.
  std::uint32_t num_restarts = 0;      ///< Samples of steps before the last one are dropped.
  std::uint32_t load_first = 0;        ///< First loaded block.
  std::uint32_t load_end = 0;
  std::uint64_t load_epoch = 0;
  bool load_failed = false;  ///< Every rank has announced so.
  /// Something happened for which a load may fail: a rank failed, or the engine took less than it
  /// was offered.
  bool load_may_fail = false;
  bool load_ended_well = false;   ///< On every rank.
  std::vector<std::uint64_t> kv;  ///< Of the computed tokens, as they are in its blocks.
  std::shared_ptr<FakeHashes> hashes = std::make_shared<FakeHashes>(std::vector<std::uint64_t>{});

  [[nodiscard]] std::uint32_t token(std::uint32_t at) {
    while (truth.size() <= at) {
      truth.push_back(static_cast<std::uint32_t>(
          mix(hash(static_cast<std::uint32_t>(truth.size()) - 1), 7) % 3));
    }
    return truth[at];
  }
  /// Of the tokens up to and with `at`, whatever the weights.
  [[nodiscard]] std::uint64_t hash(std::uint32_t at) {
    while (chain.size() <= at) {
      const auto next = static_cast<std::uint32_t>(chain.size());
      chain.push_back(mix(next == 0 ? 1 : chain[next - 1], token(next)));
    }
    return chain[at];
  }
  [[nodiscard]] std::uint64_t block_hash(std::uint32_t block) {
    return hash((block + 1) * kBlockTokens - 1);
  }
  /// KV of the first `count` tokens, all computed with the weights of `epoch`.
  [[nodiscard]] std::vector<std::uint64_t> pure_kv(std::uint32_t count, std::uint64_t epoch) {
    std::vector<std::uint64_t> pure;
    for (std::uint32_t at = 0; at < count; ++at) pure.push_back(next_kv(pure, epoch));
    return pure;
  }
  /// KV of the token behind `before` computed with the weights of `epoch`.
  [[nodiscard]] std::uint64_t next_kv(const std::vector<std::uint64_t>& before,
                                      std::uint64_t epoch) {
    const auto at = static_cast<std::uint32_t>(before.size());
    return mix(mix(before.empty() ? 3 : before.back(), token(at)), epoch);
  }
  /// The scheduler knows so many tokens: whole blocks of them are hashed.
  void know(std::uint32_t count) {
    num_known = count;
    while (hashes->size() < num_known / kBlockTokens) {
      hashes->append(block_hash(static_cast<std::uint32_t>(hashes->size())));
    }
  }
  /// What a session keeps of a turn.
  enum class Keeps : std::uint8_t {
    kAllButTheLast,  ///< Token, which was sampled and not computed (vLLM 0.33).
    kComputed        ///< Less, if it was preempted before its last sample came (vLLM 0.32).
  };
  /// A session's turn is over: tokens are taken back, and the hashes of the blocks that they were
  /// in. Returns how many hashes.
  std::size_t end_turn(Keeps keeps) {
    const std::size_t num_hashes = hashes->size();
    num_known -= 1;
    num_computed = std::min(num_computed - num_placeholders, num_known);
    if (keeps == Keeps::kComputed) num_known = num_computed;
    kv.resize(num_computed);
    truth.resize(num_known);
    chain.resize(std::min<std::size_t>(chain.size(), num_known));
    hashes->truncate(num_known / kBlockTokens);
    drop_samples();
    state = ToyState::kBetweenTurns;
    return num_hashes - hashes->size();
  }
  /// Its next turn begins, with the blocks that it has.
  void begin_turn(const std::vector<std::uint32_t>& tokens, std::uint32_t max_output) {
    truth.insert(truth.end(), tokens.begin(), tokens.end());
    know(num_known + static_cast<std::uint32_t>(tokens.size()));
    num_last = num_known + max_output;
    --num_turns_left;
    state = ToyState::kReady;
  }
  /// What steps in flight sample is not taken.
  void drop_samples() {
    num_placeholders = 0;
    ++num_restarts;
  }
  /// Its blocks are gone.
  void restart() {
    state = ToyState::kWaiting;
    tables.clear();
    kv.clear();
    num_computed = 0;
  }

 private:
  std::vector<std::uint32_t> truth;
  std::vector<std::uint64_t> chain;
};

}  // namespace kvferry::connector
