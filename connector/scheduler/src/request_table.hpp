// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/connector/scheduler/engine_step.hpp"
#include "kvferry/connector/scheduler/engine_view.hpp"
#include "kvferry/connector/wire/owner.hpp"
#include "kvferry/cpu_tier/slots/block_key.hpp"

#include "block_groups.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace kvferry::connector {

/// The state of one incarnation of a request.
enum class RequestState : std::uint8_t {
  kIdle,           ///< Waiting or running; no transfer belongs to it.
  kLoading,        ///< A load is planned or under way and the engine waits for its report.
  kAbortedLoading  ///< Finished by the engine while loading: a tombstone until the load ended on
                   ///< every rank.
};

/// Keys of a request's complete blocks, by KV cache group and block.
using GroupKeys = std::vector<std::vector<cpu_tier::BlockKey>>;

/// One incarnation of a request: its identity, its state, and its blocks. The table owns it; its
/// address is stable until it is erased. Other parts keep their own data about it (PerRequest).
struct Request {
  RequestId id;
  Generation generation;
  /// While this request is in the table, no other request of the table has this place.
  std::uint32_t place = 0;
  RequestState state = RequestState::kIdle;
  std::string engine_id;
  std::shared_ptr<const BlockHashes> hashes;
  GroupKeys keys;                ///< As of the last sync_keys().
  std::uint32_t num_hashes = 0;  ///< Positions whose hashes were known then.
  /// GPU blocks by KV cache group and block, as of the last plan or load.
  std::vector<std::vector<BlockId>> tables;
  bool had_drafts = false;  ///< A recorded step had drafts.
  TransferId load;          ///< The load under way in kLoading and kAbortedLoading.
  RequestLimits limits;
  std::uint32_t load_limit = RequestLimits::kNone;  ///< Positions that one load brings.
  /// Positions, from the first one, whose blocks it may store: by its limits, and by its prompt if
  /// the engine stores only prompts.
  std::uint32_t store_limit = RequestLimits::kNone;

  [[nodiscard]] std::span<const cpu_tier::BlockKey> keys_of(GroupId group) const {
    return keys[group.value()];
  }
  [[nodiscard]] std::span<const BlockId> table(GroupId group) const {
    return tables[group.value()];
  }
  [[nodiscard]] Owner owner(DomainId domain) const { return {domain, id, generation}; }
  /// The position up to which every group's table has blocks.
  [[nodiscard]] std::uint32_t table_end(const BlockGroups& groups) const {
    auto end = std::numeric_limits<std::uint32_t>::max();
    for (const GroupId group : groups.ids()) {
      const auto num_blocks = static_cast<std::uint32_t>(table(group).size());
      end = std::min(end, num_blocks * groups.block_length(group));
    }
    return end;
  }
  [[nodiscard]] bool has_blocks() const {
    return std::any_of(tables.begin(), tables.end(),
                       [](const auto& table) { return !table.empty(); });
  }

  /// Takes over hashes that the engine added. Drops keys whose hashes it truncated or replaced
  /// (streaming sessions), and keys of other weights. Hashes are chained, so an equal last key
  /// proves all before it. If it has dropped keys, returns the position up to which keys are left.
  [[nodiscard]] std::optional<std::uint32_t> sync_keys(const BlockGroups& groups,
                                                       WeightsId weights = WeightsId());
  /// Takes over the blocks of a step, by group; empty: none in any.
  void update_tables(TableUpdate update, GroupBlocks blocks) {
    if (update == TableUpdate::kReplace) {
      for (auto& table : tables) table.clear();
    }
    for (std::size_t group = 0; group < blocks.size(); ++group) {
      std::vector<BlockId>& table = tables[group];
      table.resize(table.size() + blocks[group].size());
      std::copy(blocks[group].begin(), blocks[group].end(),
                table.end() - std::ssize(blocks[group]));
    }
  }

 private:
  /// How many of the group's keys agree with the engine's hashes, of which `available` are known.
  [[nodiscard]] std::size_t num_known_keys(const BlockGroups& groups, GroupId group,
                                           std::uint32_t available, WeightsId weights) const;
  /// Adds the group's missing keys for these hashes.
  void add_keys(const BlockGroups& groups, GroupId group, std::uint32_t available,
                WeightsId weights);
};

/// What the end of a load on every rank means for its owner.
enum class LoadEnd : std::uint8_t {
  kWaitedFor,  ///< This incarnation waits: it runs now (computed or rolled back).
  kAborted,    ///< This very incarnation was aborted: its blocks are freed now and the tombstone is
               ///< gone.
  kStale       ///< No such incarnation waits: the report must not reach the engine.
};

/// All requests the engine knows of, and the tombstones of those that ended while loading. One
/// thread at a time.
class RequestTable {
 public:
  explicit RequestTable(DomainId domain, std::size_t num_groups = 1)
      : domain_(domain), num_groups_(num_groups) {}

  /// A request arrives. An id that is in use, also by a tombstone, starts a new incarnation. The
  /// engine has one record per id, so it has forgotten the old incarnation, and a report of its
  /// load is stale.
  Request& arrive(std::string_view engine_id, std::shared_ptr<const BlockHashes> hashes);
  /// The number of the next request that arrives.
  [[nodiscard]] RequestId next_id() const { return last_id_.next(); }
  /// The living (not finished) request with that id, or null.
  [[nodiscard]] Request* find(std::string_view engine_id);
  /// Starts a new generation in place, because its blocks were freed.
  void preempt(Request& request);
  /// The engine finished the request. Idempotent; unknown ids are ignored. Returns the load that is
  /// still under way and has to be cancelled, or 0.
  [[nodiscard]] TransferId finish(std::string_view engine_id);

  /// kIdle -> kLoading.
  void begin_load(Request& request, TransferId load);
  /// What the end of a load would mean now.
  [[nodiscard]] LoadEnd meaning_of_end(const Owner& owner, TransferId load) const;
  /// The load ended on every rank: kLoading -> kIdle with a new generation, or the tombstone is
  /// removed.
  [[nodiscard]] LoadEnd end_load(const Owner& owner, TransferId load);

  /// Calls `visit` for living requests only.
  template <class Visit>
  void for_each(Visit visit) {
    for (auto& [id, request] : by_id_) {
      if (request->state != RequestState::kAbortedLoading) visit(*request);
    }
  }
  /// The oldest incarnations, tombstones included, so many at most. O(requests).
  [[nodiscard]] std::vector<const Request*> oldest(std::size_t most) const;
  [[nodiscard]] std::size_t num_living() const { return by_id_.size() - num_tombstones_; }
  [[nodiscard]] std::size_t num_tombstones() const { return num_tombstones_; }
  [[nodiscard]] DomainId domain() const { return domain_; }

 private:
  struct IdHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>{}(text);
    }
  };

  void erase(Request& request);
  [[nodiscard]] std::uint32_t take_place();
  [[nodiscard]] Generation next_generation() { return last_generation_ = last_generation_.next(); }

  DomainId domain_;
  std::size_t num_groups_;
  RequestId last_id_;
  Generation last_generation_;
  std::unordered_map<RequestId, std::unique_ptr<Request>> by_id_;
  /// The newest incarnation of each engine id, including tombstones.
  std::unordered_map<std::string, Request*, IdHash, std::equal_to<>> newest_;
  std::size_t num_tombstones_ = 0;
  std::uint32_t num_places_ = 0;
  std::vector<std::uint32_t> free_places_;
};

}  // namespace kvferry::connector
