// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/wire/step_plan.hpp"
#include "kvferry/recorder/recorder.hpp"
#include "kvferry/transfer/transfer_engine.hpp"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

namespace kvferry::connector {

/// Records what a rank is told and does, if there is a recorder (recorder/event.hpp defines the
/// events). Without one every function returns at once. One thread at a time.
class RankJournal {
 public:
  explicit RankJournal(std::shared_ptr<recorder::Recorder> to) : to_(std::move(to)) {}

  /// The rank got this plan, and has not done anything of it.
  void bound(const StepPlan& plan);
  void saved();
  void gathered(TransferId store, std::uint32_t num_gathered, std::uint32_t num_ordered,
                bool has_copies);
  void copied(const transfer::Completion& completion);
  void reported(std::size_t num_bytes);
  void fell_asleep() { sleep_event(1); }
  void woke() { sleep_event(0); }
  void threw(const std::exception& error);

  /// As long as it lives, a broken invariant that this thread finds is recorded here.
  class Watch {
   public:
    explicit Watch(recorder::Recorder* to);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    recorder::Recorder* const to_;
    /// In one process, the scheduler side can have the same thread.
    recorder::Recorder* before_ = nullptr;
  };
  [[nodiscard]] Watch watch() const { return Watch(to_.get()); }

 private:
  void sleep_event(std::uint32_t is_asleep);

  const std::shared_ptr<recorder::Recorder> to_;
};

}  // namespace kvferry::connector
