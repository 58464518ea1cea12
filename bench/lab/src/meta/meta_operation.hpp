// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "meta/answer_sheet.hpp"
#include "meta/meta_rig.hpp"
#include "meta/time_once.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvferry::bench {

/// Which of a round's blocks are held.
enum class Holds : std::uint8_t { kNone, kAll };

/// The subject of a row: a part of an operation.
struct MetaPart {
  const char* name;
  /// Whether the bare table does something similar, which is timed too.
  bool has_bare = false;
  std::optional<double> warm_goal_ns = std::nullopt;
  std::optional<double> cold_goal_ns = std::nullopt;
  /// With ten million resident blocks and more, warm or cold.
  std::optional<double> many_goal_ns = std::nullopt;
};

/// An operation of the scheduler side on its own tier. A round is prepare(), run() (after the
/// caches were prepared), run_bare() (the same), check(). Used by one thread.
class MetaOperation {
 public:
  /// The names for make_meta_operation().
  [[nodiscard]] static std::vector<std::string> names();

  virtual ~MetaOperation() = default;
  MetaOperation(const MetaOperation&) = delete;
  MetaOperation& operator=(const MetaOperation&) = delete;

  [[nodiscard]] virtual std::span<const MetaPart> parts() const = 0;
  [[nodiscard]] const MetaShape& shape() const { return rig_.shape(); }
  /// Chooses the round's blocks.
  void prepare();
  /// Looks up everything that run() will touch.
  void warm_tier();
  void warm_bare();
  /// The time of each part, over all calls of the round.
  [[nodiscard]] virtual std::vector<std::chrono::nanoseconds> run() = 0;
  /// The time of the bare table, for the parts that have it.
  [[nodiscard]] std::chrono::nanoseconds run_bare();
  /// Checks every answer of the round, and the tier's counts.
  void check(AnswerSheet& sheet);

 protected:
  /// The increase of the tier's counters in a round.
  struct Moved {
    std::uint64_t reserved = 0;
    std::uint64_t committed = 0;
    std::uint64_t evicted = 0;
    std::uint64_t offered = 0;
  };

  explicit MetaOperation(const MetaShape& shape, std::uint32_t num_free = 0)
      : rig_(shape, num_free), batch_(shape.batch) {}

  [[nodiscard]] virtual MetaKeys choose() = 0;
  /// By default, finds the round's blocks.
  virtual void do_bare();
  virtual void check_answers(AnswerSheet& sheet) = 0;
  [[nodiscard]] virtual Moved moved() const { return {}; }

  /// Calls work(first, keys) for each call of the round. Returns the time of all of them.
  template <class Work>
  [[nodiscard]] std::chrono::nanoseconds time_calls(const Work& work) {
    return time_once([&] {
      const std::span<const cpu_tier::BlockKey> keys(blocks_.keys);
      for (std::size_t i = 0; i < keys.size(); i += batch_) work(i, keys.subspan(i, batch_));
    });
  }
  [[nodiscard]] std::size_t num_keys() const { return blocks_.keys.size(); }
  /// Checks the bare table's answers for the round's blocks: it holds all of them or none.
  void expect_values(AnswerSheet& sheet, Holds holds) const;
  void expect_states(AnswerSheet& sheet, std::span<const cpu_tier::BlockKey> keys,
                     cpu_tier::KeyState state);

  MetaRig rig_;
  const std::uint32_t batch_;
  MetaKeys blocks_;
  /// The blocks that are evicted for them; empty if there are none, or if they are not known.
  MetaKeys leaving_;
  std::vector<std::uint32_t> values_;

 private:
  cpu_tier::TierSnapshot before_;
};

/// `name` is one of names(). Throws ConfigError.
[[nodiscard]] std::unique_ptr<MetaOperation> make_meta_operation(std::string_view name,
                                                                 const MetaShape& shape);

}  // namespace kvferry::bench
