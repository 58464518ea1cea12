// SPDX-License-Identifier: Apache-2.0
#include "fleet/fleet_simulation.hpp"

#include "measure/samples.hpp"
#include "trace/used_tier.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

namespace kvferry::bench::fleet {
namespace {

using cpu_tier::BlockKey;
using cpu_tier::PrefixHit;
using trace::Trace;
using trace::UsedTier;

/// How often progress is shown, in requests.
constexpr std::uint64_t kProgressEvery = 1024;

/// A store that keeps what was used last, as Mooncake's does.
constexpr cpu_tier::TierOptions kFarPolicy{cpu_tier::Eviction::kLru, cpu_tier::Admission::kAlways};

struct Node {
  explicit Node(std::uint32_t num_blocks) : tier(num_blocks, cpu_tier::TierOptions{}) {}

  UsedTier tier;
  double free_at_s = 0;  ///< When the engine has computed the prompts that it has.
  std::uint64_t computed_tokens = 0;
};

/// What a node would do with the current request.
struct Plan {
  PrefixHit near_hit;
  std::size_t num_near = 0;  ///< Blocks that it loads from its own tier.
  std::size_t num_far = 0;   ///< Blocks that it then loads from the far tier.
  std::uint64_t near_tokens = 0;
  std::uint64_t far_tokens = 0;
  std::uint64_t computed_tokens = 0;
  double first_token_at_s = 0;
};

class FleetSimulation {
 public:
  FleetSimulation(const Trace& requests, const FleetShape& shape, std::uint64_t seed)
      : requests_(requests),
        shape_(shape),
        random_(seed),
        near_block_s_(block_seconds(shape.time.link_gb_per_s)),
        far_block_s_(block_seconds(shape.far_gb_per_s)),
        gap_s_(static_cast<double>(requests.num_tokens()) /
               static_cast<double>(requests.num_requests()) / shape.time.prefill_tokens_per_second /
               (shape.offered_load * shape.num_nodes)) {
    for (std::uint32_t i = 0; i < shape.num_nodes; ++i) nodes_.emplace_back(shape.tier_blocks);
    if (shape.far_tier != FarTier::kNone) far_.emplace(shape.far_blocks, kFarPolicy);
  }

  FleetResult run(const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
    const std::uint64_t all = std::uint64_t{shape_.num_tenants} * requests_.num_requests();
    std::vector<std::size_t> next(shape_.num_tenants, 0);
    std::vector<std::uint32_t> alive(shape_.num_tenants);
    std::iota(alive.begin(), alive.end(), 0U);
    for (std::uint64_t done = 0; !alive.empty(); ++done) {
      if (done % kProgressEvery == 0) progress(done, all);
      std::uint32_t& tenant = alive[below(static_cast<std::uint32_t>(alive.size()))];
      now_s_ += std::exponential_distribution<double>(1 / gap_s_)(random_);
      begin_request(tenant, next[tenant]++);
      serve(nodes_[choose_node()]);
      if (next[tenant] == requests_.num_requests()) {
        tenant = alive.back();
        alive.pop_back();
      }
    }
    return result();
  }

 private:
  [[nodiscard]] double block_seconds(double gb_per_s) const {
    return static_cast<double>(shape_.time.block_bytes) / (1e9 * gb_per_s);
  }
  [[nodiscard]] std::uint32_t below(std::uint32_t bound) {
    return std::uniform_int_distribution<std::uint32_t>(0, bound - 1)(random_);
  }

  void begin_request(std::uint32_t tenant, std::size_t index) {
    index_ = index;
    keys_.clear();
    const std::uint64_t first = std::uint64_t{tenant} * requests_.num_distinct();
    for (const std::uint32_t block : requests_.request(index)) {
      keys_.push_back(trace::key_of(first + block));
    }
    far_hit_ = far_ ? far_->lookup(keys_) : PrefixHit{};
  }

  [[nodiscard]] Plan plan(const Node& node) const {
    Plan plan;
    plan.near_hit = node.tier.lookup(keys_);
    plan.num_near = plan.near_hit.size();
    const std::size_t num_far_held = far_hit_.size();
    switch (shape_.far_tier) {
      case FarTier::kNone:
        break;
      case FarTier::kTierFirst:
        if (plan.num_near == 0) plan.num_far = num_far_held;
        break;
      case FarTier::kFarFirst:
        plan.num_far = num_far_held;
        if (num_far_held > 0) plan.num_near = 0;
        break;
      case FarTier::kBoth:
        plan.num_far = std::max(num_far_held, plan.num_near) - plan.num_near;
        break;
    }
    plan.near_tokens = requests_.prefix_tokens(index_, plan.num_near);
    plan.far_tokens =
        requests_.prefix_tokens(index_, plan.num_near + plan.num_far) - plan.near_tokens;
    plan.computed_tokens = requests_.prompt_tokens(index_) - plan.near_tokens - plan.far_tokens;
    const double loaded_at_s = now_s_ + static_cast<double>(plan.num_near) * near_block_s_ +
                               static_cast<double>(plan.num_far) * far_block_s_;
    plan.first_token_at_s =
        std::max(loaded_at_s, node.free_at_s) +
        static_cast<double>(plan.computed_tokens) / shape_.time.prefill_tokens_per_second;
    return plan;
  }

  [[nodiscard]] std::size_t choose_node() {
    const std::uint32_t from = below(shape_.num_nodes);
    if (shape_.routing == Routing::kRandom) return from;
    const auto wait = [this](const Node& node) {
      return shape_.routing == Routing::kLeastLoaded ? std::max(node.free_at_s, now_s_)
                                                     : plan(node).first_token_at_s;
    };
    // Of nodes that are as good, a random one.
    std::size_t best = from;
    double shortest = wait(nodes_[from]);
    for (std::uint32_t i = 1; i < shape_.num_nodes; ++i) {
      const std::size_t other = (from + i) % shape_.num_nodes;
      const double other_wait = wait(nodes_[other]);
      if (other_wait < shortest) {
        best = other;
        shortest = other_wait;
      }
    }
    return best;
  }

  void serve(Node& node) {
    const Plan plan = this->plan(node);
    node.free_at_s = std::max(node.free_at_s, plan.first_token_at_s);
    node.computed_tokens += plan.computed_tokens;
    node.tier.load(plan.near_hit, plan.num_near);
    node.tier.store(keys_);
    if (far_) {
      far_->load(far_hit_, plan.num_far == 0 ? 0 : plan.num_near + plan.num_far);
      far_->store(keys_);
    }
    ++result_.num_requests;
    result_.num_tokens += requests_.prompt_tokens(index_);
    result_.near_tokens += plan.near_tokens;
    result_.far_tokens += plan.far_tokens;
    result_.computed_tokens += plan.computed_tokens;
    result_.near_loads += plan.num_near;
    result_.far_loads += plan.num_far;
    ttft_.add(std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::chrono::duration<double>(plan.first_token_at_s - now_s_)));
  }

  /// Adds what a tier has stored, and what is left of it.
  void count(const UsedTier& used, std::uint64_t& num_stores) {
    const cpu_tier::TierSnapshot now = used.tier().snapshot();
    num_stores += now.num_committed_total;
    result_.num_left += now.num_committed_total - now.num_evicted_total;
    result_.num_resident += std::uint64_t{now.num_evictable} + now.num_leased;
  }

  [[nodiscard]] FleetResult result() {
    std::uint64_t most = 0;
    for (const Node& node : nodes_) {
      count(node.tier, result_.near_stores);
      most = std::max(most, node.computed_tokens);
    }
    if (far_) count(*far_, result_.far_stores);
    result_.busiest_over_mean =
        static_cast<double>(most) * shape_.num_nodes /
        static_cast<double>(std::max<std::uint64_t>(result_.computed_tokens, 1));
    result_.ttft_mean_s = 1e-6 * ttft_.mean_us();
    result_.ttft_p99_s = 1e-6 * ttft_.percentile_us(0.99);
    return result_;
  }

  const Trace& requests_;
  const FleetShape& shape_;
  std::mt19937_64 random_;
  const double near_block_s_;
  const double far_block_s_;
  const double gap_s_;  ///< Mean time between two requests.

  std::deque<Node> nodes_;
  std::optional<UsedTier> far_;
  double now_s_ = 0;
  // The current request.
  std::size_t index_ = 0;
  std::vector<BlockKey> keys_;
  PrefixHit far_hit_;

  FleetResult result_;
  Samples ttft_;
};

}  // namespace

FleetResult simulate_fleet(const Trace& requests, const FleetShape& shape, std::uint64_t seed,
                           const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  return FleetSimulation(requests, shape, seed).run(progress);
}

}  // namespace kvferry::bench::fleet
