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

/// How many of the blocks of a round are held.
enum class Holds : std::uint8_t { kNone, kAll };

/// What a row is about: a part of an operation.
struct MetaPart {
  const char* name;
  /// The bare table does something of the kind, which is timed beside it.
  bool has_bare = false;
  std::optional<double> warm_goal_ns = std::nullopt;
  std::optional<double> cold_goal_ns = std::nullopt;
  /// With ten million resident blocks and more, warm or cold.
  std::optional<double> many_goal_ns = std::nullopt;
};

/// An operation of the scheduler side on a tier of its own. A round: prepare(), run() (once the
/// caches are as they should be), run_bare() (the same), check(). One thread.
class MetaOperation {
 public:
  /// The names that make_meta_operation() knows.
  [[nodiscard]] static std::vector<std::string> names();

  virtual ~MetaOperation() = default;
  MetaOperation(const MetaOperation&) = delete;
  MetaOperation& operator=(const MetaOperation&) = delete;

  [[nodiscard]] virtual std::span<const MetaPart> parts() const = 0;
  [[nodiscard]] const MetaShape& shape() const { return rig_.shape(); }
  /// Chooses the round's blocks.
  void prepare();
  /// Looks everything up that run() will touch.
  void warm_tier();
  void warm_bare();
  /// What each part took, over all calls of the round.
  [[nodiscard]] virtual std::vector<std::chrono::nanoseconds> run() = 0;
  /// What the bare table took for the parts that have it.
  [[nodiscard]] std::chrono::nanoseconds run_bare();
  /// Every answer of the round, and the tier's counts.
  void check(AnswerSheet& sheet);

 protected:
  /// What a round adds to the tier's counters.
  struct Moved {
    std::uint64_t reserved = 0;
    std::uint64_t committed = 0;
    std::uint64_t evicted = 0;
    std::uint64_t offered = 0;
  };

  explicit MetaOperation(const MetaShape& shape, std::uint32_t num_free = 0)
      : rig_(shape, num_free), batch_(shape.batch) {}

  [[nodiscard]] virtual MetaKeys choose() = 0;
  /// Finds the round's blocks, unless there is something else to do.
  virtual void do_bare();
  virtual void check_answers(AnswerSheet& sheet) = 0;
  [[nodiscard]] virtual Moved moved() const { return {}; }

  /// Calls work(first, keys) for each call of the round; what all of them took.
  template <class Work>
  [[nodiscard]] std::chrono::nanoseconds time_calls(const Work& work) {
    return time_once([&] {
      const std::span<const cpu_tier::BlockKey> keys(blocks_.keys);
      for (std::size_t i = 0; i < keys.size(); i += batch_) work(i, keys.subspan(i, batch_));
    });
  }
  [[nodiscard]] std::size_t num_keys() const { return blocks_.keys.size(); }
  /// That the bare table answered, of the round's blocks, as it holds all of them or none.
  void expect_values(AnswerSheet& sheet, Holds holds) const;
  void expect_states(AnswerSheet& sheet, std::span<const cpu_tier::BlockKey> keys,
                     cpu_tier::KeyState state);

  MetaRig rig_;
  const std::uint32_t batch_;
  MetaKeys blocks_;
  /// Those that are evicted for them; empty if none are, or it is not known which.
  MetaKeys leaving_;
  std::vector<std::uint32_t> values_;

 private:
  cpu_tier::TierSnapshot before_;
};

/// `name` is one of names(). Throws ConfigError.
[[nodiscard]] std::unique_ptr<MetaOperation> make_meta_operation(std::string_view name,
                                                                 const MetaShape& shape);

}  // namespace kvferry::bench
