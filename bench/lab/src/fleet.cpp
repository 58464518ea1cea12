// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/error.hpp"

#include "fleet/fleet_row.hpp"
#include "fleet/fleet_simulation.hpp"
#include "lab_subcommands.hpp"
#include "measure/stopwatch.hpp"
#include "progress.hpp"
#include "trace/list_option.hpp"
#include "trace/replay.hpp"
#include "trace/trace_input.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace kvferry::bench {
namespace {

using fleet::FarTier;
using fleet::FleetResult;
using fleet::FleetRow;
using fleet::FleetShape;
using fleet::Routing;
using trace::Trace;

using Words = std::vector<std::string>;

constexpr std::uint32_t kMaxNodes = 4096;
/// A network of 100 Gbit/s, of which 80 % are payload. The share is an assumption.
constexpr double kDefaultFarGbPerS = 10;

/// Simulates fleets of nodes on a trace, side by side.
class Fleet final : public Subcommand {
 public:
  [[nodiscard]] const char* name() const override { return "fleet"; }
  [[nodiscard]] const char* summary() const override {
    return "hit rates, bytes over links and times to first token of a simulated fleet of nodes, "
           "for several routers and with a far tier that all nodes share";
  }
  [[nodiscard]] bool uses_device() const override { return false; }
  void add_options(CLI::App& app) override;
  void check_options(const CommonOptions& options) override;
  void run(Bench& bench, Report& report) override;

 private:
  /// The row of one shape.
  [[nodiscard]] FleetRow simulate(Bench& bench, const Trace& requests,
                                  const FleetShape& shape) const;
  void check(Bench& bench, const Trace& requests, const FleetShape& shape,
             const FleetResult& result) const;
  void describe(const Trace& requests, std::string_view traffic, Report& report) const;
  /// All combinations of the options' lists.
  [[nodiscard]] std::vector<FleetShape> shapes(const Trace& requests) const;

  trace::TraceInput input_;
  std::vector<std::uint32_t> nodes_;
  Words routing_names_ = {"random", "least_loaded", "kv_aware"};
  Words far_tier_names_ = {"none", "tier_first", "far_first", "both"};
  std::uint32_t nodes_per_tenant_ = 8;
  double far_tiers_ = 4;
  double offered_load_ = 0.7;
  double far_gb_per_s_ = kDefaultFarGbPerS;
  std::vector<Routing> routings_;
  std::vector<FarTier> far_tier_;
};

void Fleet::add_options(CLI::App& app) {
  input_.add_options(app);
  trace::add_list(app, "--nodes", nodes_, "number of nodes [8,64; quick: 8]")
      ->check(CLI::Range(1U, kMaxNodes));
  trace::add_list(app, "--routing", routing_names_,
                  "how the router picks a node: random, least_loaded, kv_aware")
      ->capture_default_str();
  trace::add_list(
      app, "--far-tier", far_tier_names_,
      "how engines use a store that all nodes share: none, tier_first (it loads only prompts of "
      "which the node's tier has no block), far_first (the reverse), both (it loads what "
      "continues the prefix in the node's tier)")
      ->capture_default_str();
  app.add_option("--far-tiers", far_tiers_,
                 "size of the far tier, in tiers of a node for each node")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--far-gb-per-s", far_gb_per_s_,
                 "rate of a node's connection to the far tier, in GB/s [10: 100 Gbit/s]")
      ->check(CLI::PositiveNumber);
  app.add_option("--nodes-per-tenant", nodes_per_tenant_,
                 "one tenant for each of so many nodes sends all of the trace's requests; tenants "
                 "share no block")
      ->check(CLI::Range(1U, kMaxNodes))
      ->capture_default_str();
  app.add_option("--load", offered_load_,
                 "share of the time that engines would compute without any tier; determines how "
                 "often requests arrive")
      ->check(CLI::Range(0.01, 0.99))
      ->capture_default_str();
}

void Fleet::check_options(const CommonOptions& options) {
  for (const std::string& name : routing_names_) routings_.push_back(fleet::routing_from(name));
  for (const std::string& name : far_tier_names_) far_tier_.push_back(fleet::far_tier_from(name));
  if (nodes_.empty()) {
    nodes_ = options.effort == Effort::kQuick ? std::vector{8U} : std::vector{8U, 64U};
  }
  input_.check_options(options);
}

std::vector<FleetShape> Fleet::shapes(const Trace& requests) const {
  std::vector<FleetShape> shapes;
  FleetShape shape;
  shape.offered_load = offered_load_;
  shape.time = input_.time_model(requests);
  shape.far_gb_per_s = far_gb_per_s_;
  for (const std::uint32_t nodes : nodes_) {
    shape.num_nodes = nodes;
    shape.num_tenants = std::max(nodes / nodes_per_tenant_, 1U);
    // Larger tiers would never evict anything.
    const std::uint64_t most =
        std::min<std::uint64_t>(std::uint64_t{shape.num_tenants} * requests.num_distinct(),
                                std::numeric_limits<std::int32_t>::max());
    for (const std::uint64_t capacity : input_.capacities(requests)) {
      shape.tier_blocks = static_cast<std::uint32_t>(std::min(capacity, most));
      shape.far_blocks = static_cast<std::uint32_t>(std::clamp(
          far_tiers_ * nodes * static_cast<double>(capacity), 1.0, static_cast<double>(most)));
      for (const Routing routing : routings_) {
        shape.routing = routing;
        for (const FarTier far_tier : far_tier_) {
          shape.far_tier = far_tier;
          shapes.push_back(shape);
        }
      }
    }
  }
  return shapes;
}

void Fleet::check(Bench& bench, const Trace& requests, const FleetShape& shape,
                  const FleetResult& result) const {
  const auto check_that = [&](std::uint64_t found, std::uint64_t expected, const char* count) {
    bench.verifier.check_count(found, expected,
                               fmt::format("{}, {} nodes, {}: {}", requests.name(), shape.num_nodes,
                                           to_string(shape.routing), count));
  };
  const std::uint64_t tenants = shape.num_tenants;
  check_that(result.num_requests, tenants * requests.num_requests(), "requests");
  check_that(result.num_tokens, tenants * requests.num_tokens(), "tokens");
  check_that(result.near_tokens + result.far_tokens + result.computed_tokens, result.num_tokens,
             "loaded and computed tokens");
  check_that(result.num_left, result.num_resident, "stored and not evicted");
}

FleetRow Fleet::simulate(Bench& bench, const Trace& requests, const FleetShape& shape) const {
  const std::uint64_t mismatches_before = bench.verifier.num_mismatches();
  static_cast<void>(bench.verifier.next_round());
  const Stopwatch clock;
  const FleetResult result = fleet::simulate_fleet(
      requests, shape, bench.options.seed, [&bench](std::uint64_t done, std::uint64_t all) {
        bench.progress.round(static_cast<std::uint32_t>(done), static_cast<std::uint32_t>(all));
      });
  const auto cpu = clock.cost().cpu;
  check(bench, requests, shape, result);
  const double block_gb = 1e-9 * static_cast<double>(shape.time.block_bytes);
  const auto gb = [block_gb](std::uint64_t blocks) {
    return static_cast<double>(blocks) * block_gb;
  };
  const auto percent = [&result](std::uint64_t tokens) {
    return 100.0 * static_cast<double>(tokens) / static_cast<double>(result.num_tokens);
  };
  FleetRow row;
  row.nodes = shape.num_nodes;
  row.capacity_blocks = shape.tier_blocks;
  row.capacity_gb = gb(shape.tier_blocks);
  row.routing = to_string(shape.routing);
  row.far_tier = to_string(shape.far_tier);
  row.loaded_percent = percent(result.near_tokens + result.far_tokens);
  row.near_percent = percent(result.near_tokens);
  row.far_percent = percent(result.far_tokens);
  row.ttft_mean_s = result.ttft_mean_s;
  row.ttft_p99_s = result.ttft_p99_s;
  row.busiest_over_mean = result.busiest_over_mean;
  row.near_loaded_gb = gb(result.near_loads);
  row.near_stored_gb = gb(result.near_stores);
  row.far_loaded_gb = gb(result.far_loads);
  row.far_stored_gb = gb(result.far_stores);
  if (shape.far_tier != FarTier::kNone) row.far_capacity_gb = gb(shape.far_blocks);
  row.simulation_s = std::chrono::duration<double>(cpu).count();
  row.verified = bench.verifier.num_mismatches() == mismatches_before;
  return row;
}

void Fleet::describe(const Trace& requests, std::string_view traffic, Report& report) const {
  report.notes.push_back(fmt::format(
      "{}: {} requests, {} tokens for each tenant, and a tenant for every {} nodes. A tier that "
      "all nodes share and that never evicts would load {:.1f} % of the blocks.",
      traffic.empty() ? requests.name() : traffic, requests.num_requests(), requests.num_tokens(),
      nodes_per_tenant_, trace::replay_endless(requests).load_percent()));
}

void Fleet::run(Bench& bench, Report& report) {
  bench.progress.expect(input_.num_traces() * input_.num_capacities() * nodes_.size() *
                        routings_.size() * far_tier_.size());
  report.warm_up_rounds = 0;
  report.verified = "the counts of every simulation agree with each other and with the trace";
  input_.for_each(bench.options.seed, [&](const Trace& requests, std::string_view traffic) {
    describe(requests, traffic, report);
    for (const FleetShape& shape : shapes(requests)) {
      const auto name =
          fmt::format("{} {} nodes {} blocks {} {}", traffic, shape.num_nodes, shape.tier_blocks,
                      to_string(shape.routing), to_string(shape.far_tier));
      static_cast<void>(bench.rows.step<FleetRow>(name, [&] {
        bench.progress.begin_row(name);
        std::vector<FleetRow> rows = {simulate(bench, requests, shape)};
        rows.back().traffic = traffic;
        return rows;
      }));
    }
  });
  const trace::TimeModel& rates = input_.rates();
  report.extra["prefill_tokens_per_second"] = rates.prefill_tokens_per_second;
  report.extra["link_gb_per_s"] = rates.link_gb_per_s;
  report.extra["far_gb_per_s"] = far_gb_per_s_;
  report.extra["offered_load"] = offered_load_;
  report.notes.emplace_back(
      "A simulation: queues of prefills in virtual time. The engines have no prefix cache beside "
      "their tier and decode nothing, links have no queue, and a router knows at once what tiers "
      "hold.");
}

}  // namespace

std::unique_ptr<Subcommand> make_fleet() { return std::make_unique<Fleet>(); }

}  // namespace kvferry::bench
