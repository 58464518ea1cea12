// SPDX-License-Identifier: Apache-2.0
// What the scheduler side can be asked about all that is under way.
#include "kvferry/connector/scheduler/scheduler_figures.hpp"

#include "open_transfer.hpp"
#include "scheduler_parts.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvferry::connector {
namespace {

/// A text as a JSON string. Ids are the engine's; bytes that are not printable ASCII become '?'.
std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char one : text) {
    const bool is_printable =
        static_cast<unsigned char>(one) >= 0x20 && static_cast<unsigned char>(one) < 0x7f;
    if (one == '"' || one == '\\') out += '\\';
    out += is_printable ? one : '?';
  }
  return out + "\"";
}

/// A JSON object.
class JsonObject {
 public:
  void add(std::string_view name, const std::string& value) {
    text_ += (text_.empty() ? "" : ", ") + json_string(name) + ": " + value;
  }
  void add(std::string_view name, std::uint64_t value) { add(name, std::to_string(value)); }
  [[nodiscard]] std::string text() const { return "{" + text_ + "}"; }

 private:
  std::string text_;
};

/// A JSON array.
template <class Items, class TextOf>
std::string array_of(const Items& items, TextOf text_of) {
  std::string text;
  for (const auto& one : items) text += (text.empty() ? "" : ", ") + text_of(one);
  return "[" + text + "]";
}

std::string name_of(RequestState state) {
  switch (state) {
    case RequestState::kIdle:
      return "idle";
    case RequestState::kLoading:
      return "loading";
    case RequestState::kAbortedLoading:
      return "ended while loading";
  }
  return "unknown";
}

/// An engine with many ranks says nothing new with all of them.
constexpr std::size_t kMostRanks = 8;

}  // namespace

SchedulerSnapshot SchedulerEngine::Parts::snapshot() const {
  SchedulerSnapshot view;
  view.tier = tier->snapshot();
  view.slabs = tier->slab_snapshot();
  view.wasted_bytes = wasted_bytes(view.slabs);
  view.num_requests = requests.num_living();
  view.num_tombstones = requests.num_tombstones();
  view.num_stores_in_flight = stores.num_in_flight();
  view.num_loads_in_flight = loads.num_in_flight();
  view.num_backlog = backlog.size();
  view.ready_ranks = ranks.num_ready();
  view.hit_tokens = hit_tokens;
  view.stored = stores.num_stored();
  view.loaded = loads.num_loaded();
  view.load_waits = sharing.num_waits();
  view.skipped_ring = stores.num_skipped();
  const StorePlanner::Skipped skipped = planner.skipped();
  view.skipped_exhausted = skipped.exhausted;
  view.skipped_declined = skipped.declined;
  view.skipped_reallocated = skipped.reallocated;
  view.skipped_unwanted = skipped.unwanted;
  const PromiseBook::Counts& hints = promises.counts();
  view.hints = hints.done;
  view.num_promises = promises.size();
  view.hints_refused = hints.refused;
  view.hints_without_effect = hints.without_effect;
  view.hints_expired = hints.expired;
  view.failed_stores = stores.num_failed();
  view.failed_loads = loads.num_failed();
  view.expired_loads = loads.num_expired();
  view.stale_reports = stale_reports + loads.num_stale();
  const std::span<const std::uint64_t> num_damaged = loads.damage().num_damaged();
  view.damaged_blocks.assign(num_damaged.begin(), num_damaged.end());
  return view;
}

std::uint32_t SchedulerEngine::Parts::max_slots() const {
  const std::uint32_t num_chunks = ranks.all_ready() ? resizer.target() : options.max_chunks;
  return num_chunks * options.classes.front().slots_per_chunk;
}

std::string SchedulerEngine::Parts::books(std::size_t most) const {
  const auto of_request = [](const Request* request) {
    std::size_t num_blocks = 0;
    for (const std::vector<BlockId>& table : request->tables) num_blocks += table.size();
    JsonObject out;
    out.add("request", request->id.value());
    out.add("generation", request->generation.value());
    out.add("id",
            json_string(std::string_view(request->engine_id).substr(0, recorder::kMaxIdBytes)));
    out.add("status", json_string(name_of(request->state)));
    out.add("load", request->load.value());
    out.add("hashes", request->num_hashes);
    out.add("blocks", num_blocks);
    return out.text();
  };
  const RankPatience::Stamp now = patience.stamp();
  const auto of_transfer = [&now](const OpenTransfer& transfer) {
    JsonObject out;
    out.add("transfer", transfer.transfer.value());
    out.add("request", transfer.owner.request.value());
    out.add("generation", transfer.owner.generation.value());
    out.add("id",
            json_string(std::string_view(transfer.engine_id).substr(0, recorder::kMaxIdBytes)));
    out.add("status", json_string(transfer.state));
    out.add("blocks", transfer.num_blocks);
    out.add("plan", transfer.sent.plan.value());
    const auto age = std::chrono::duration_cast<std::chrono::milliseconds>(
        transfer.sent.plan == PlanSeq() ? std::chrono::nanoseconds(0)
                                        : now.served - transfer.sent.served);
    out.add("age_ms", static_cast<std::uint64_t>(age.count()));
    out.add("num_silent_ranks", transfer.silent.size());
    const std::span<const RankId> silent(transfer.silent);
    out.add("silent_ranks", array_of(silent.first(std::min(silent.size(), kMostRanks)),
                                     [](RankId rank) { return std::to_string(rank.value()); }));
    return out.text();
  };
  JsonObject figures;
  visit_figures(snapshot(), max_slots(),
                [&figures](const auto& name, std::uint64_t value) { figures.add(name, value); });
  JsonObject out;
  out.add("plan", last_seq.value());
  out.add("requests", array_of(requests.oldest(most), of_request));
  out.add("loads", array_of(loads.oldest(most), of_transfer));
  out.add("stores", array_of(stores.oldest(most), of_transfer));
  out.add("figures", figures.text());
  return out.text();
}

void SchedulerEngine::Parts::threw(const std::exception& error) {
  if (!calls.is_on()) return;
  calls.threw(error);
  // A small ring has room for a few of each, or for none.
  for (const std::size_t most : {kMostInBooks, kMostInBooks / 4, std::size_t{0}}) {
    const std::string text = books(most);
    if (text.size() <= calls.max_text_bytes()) return calls.books(text);
  }
}

}  // namespace kvferry::connector
