// SPDX-License-Identifier: Apache-2.0
// Recordings of random lives, one of them in a shared tier, as a disk has damaged them or a person
// has edited them. The first byte says which life, the rest is edits (edited_recording.hpp).
#include "kvferry/connector/replay/replay.hpp"
#include "kvferry/recorder/recording.hpp"

#include "edited_recording.hpp"
#include "random_life.hpp"
#include "shared_tier_rig.hpp"

#include <array>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

namespace kvferry::connector {
namespace {

/// Of the shared tier.
constexpr cpu_tier::TierShape kShape{
    .num_chunks = 8, .chunk_bytes = cpu_tier::kTierPageBytes, .max_chunk_slots = 4, .num_ranks = 2};

class RecordedLife final : public RandomLife {
 public:
  explicit RecordedLife(std::uint64_t seed) {
    begin_life(seed);
    live(12);
  }
  /// In a shared tier.
  RecordedLife(std::uint64_t seed, cpu_tier::TierDirectory& tier) {
    shared_tier_ = &tier;
    num_chunks_ = kShape.num_chunks;
    classes_ = {{kShape.max_chunk_slots, {100, 200}}};
    begin_life(seed);
  }
  ~RecordedLife() override { engine_.reset(); }
  void go_on() { live(3); }
  [[nodiscard]] recorder::Recording recording() const {
    return recorder::Recording::from_bytes(recorder_->bytes());
  }

 private:
  void TestBody() override {}
};

/// The first of two lives that share a tier.
recorder::Recording shared_life() {
  const cpu_tier::SharedTierRig rig(kShape);
  const auto first = rig.join("first");
  const auto second = rig.join("second");
  RecordedLife one(1, *first);
  RecordedLife other(2, *second);
  for (int i = 0; i < 60; ++i) {
    one.go_on();
    other.go_on();
  }
  return one.recording();
}

const recorder::Recording& recording_of(std::size_t life) {
  static const std::array<recorder::Recording, 5> kLives{
      RecordedLife(1).recording(), RecordedLife(2).recording(), RecordedLife(3).recording(),
      RecordedLife(4).recording(), shared_life()};
  return kLives[life % kLives.size()];
}

/// The fuzzer's handler of a signal, while the default one is in force.
class DefaultAction {
 public:
  explicit DefaultAction(int signal) : signal_(signal) {
    struct ::sigaction action {};
    action.sa_handler = SIG_DFL;
    ::sigaction(signal_, &action, &before_);
  }
  ~DefaultAction() { ::sigaction(signal_, &before_, nullptr); }
  DefaultAction(const DefaultAction&) = delete;
  DefaultAction& operator=(const DefaultAction&) = delete;

 private:
  int signal_;
  struct ::sigaction before_ {};
};

void expect(bool condition) {
  if (!condition) std::abort();
}

void run(std::span<const std::uint8_t> data) {
  try {
    const recorder::Recording one = recorder::edited(recording_of(data[0]), data.subspan(1));
    const auto result = [&one] {
      // A child that a broken invariant stops is no crash of the fuzzer.
      const DefaultAction of_abort(SIGABRT);
      return replay(one, {.where = ReplayWhere::kInChild, .check_tier_every = 4});
    }();
    // But a sanitizer can stop it too.
    expect(!result.difference ||
           result.difference->replayed.find("the process that replays it") == std::string::npos);
  } catch (const recorder::RecordingError& error) {
    const std::string why = error.what();
    expect(why.find("a recording") == 0);
    expect(why.find("the process that replays it") == std::string::npos);
  }
}

}  // namespace
}  // namespace kvferry::connector

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 0) kvferry::connector::run({data, size});
  return 0;
}
