// SPDX-License-Identifier: Apache-2.0
#include "meta/meta_operation.hpp"

namespace kvferry::bench {

using cpu_tier::BlockKey;
using cpu_tier::KeyState;

void MetaOperation::prepare() {
  blocks_ = choose();
  values_.assign(num_keys(), 0);
  before_ = rig_.tier().snapshot();
}

void MetaOperation::warm_tier() {
  std::vector<KeyState> states(num_keys());
  rig_.tier().lookup(MetaRig::kOnly, blocks_.keys, states);
  rig_.tier().lookup(MetaRig::kOnly, leaving_.keys, std::span(states).first(leaving_.keys.size()));
}

void MetaOperation::warm_bare() {
  rig_.bare().find(blocks_.keys, values_);
  rig_.bare().find(leaving_.keys, std::span(values_).first(leaving_.keys.size()));
}

std::chrono::nanoseconds MetaOperation::run_bare() {
  return time_once([this] { do_bare(); });
}

void MetaOperation::do_bare() {
  const std::span<std::uint32_t> values(values_);
  for (std::size_t first = 0; first < num_keys(); first += batch_) {
    rig_.bare().find(std::span<const BlockKey>(blocks_.keys).subspan(first, batch_),
                     values.subspan(first, batch_));
  }
}

void MetaOperation::expect_values(AnswerSheet& sheet, Holds holds) const {
  for (const std::uint32_t value : values_) {
    sheet.expect(value != BareTable::kAbsent ? 1 : 0, holds == Holds::kAll ? 1 : 0);
  }
}

void MetaOperation::expect_states(AnswerSheet& sheet, std::span<const BlockKey> keys,
                                  KeyState state) {
  std::vector<KeyState> states(keys.size());
  rig_.tier().lookup(MetaRig::kOnly, keys, states);
  for (const KeyState found : states) {
    sheet.expect(static_cast<std::uint64_t>(found), static_cast<std::uint64_t>(state));
  }
}

void MetaOperation::check(AnswerSheet& sheet) {
  check_answers(sheet);
  const cpu_tier::TierSnapshot now = rig_.tier().snapshot();
  const Moved moved = this->moved();
  sheet.expect(now.conserved() ? 1 : 0, 1);
  // A round gives back everything that it takes.
  sheet.expect(now.num_free, before_.num_free);
  sheet.expect(now.num_evictable, before_.num_evictable);
  sheet.expect(now.num_reserved_total - before_.num_reserved_total, moved.reserved);
  sheet.expect(now.num_committed_total - before_.num_committed_total, moved.committed);
  sheet.expect(now.num_evicted_total - before_.num_evicted_total, moved.evicted);
  sheet.expect(now.num_offered_total - before_.num_offered_total, moved.offered);
}

}  // namespace kvferry::bench
