// SPDX-License-Identifier: Apache-2.0
#include "kvferry/recorder/recorded_error.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/base/error.hpp"

#include <string>
#include <utility>

namespace kvferry::recorder {
namespace {

thread_local Recorder* writes_here = nullptr;

void record_broken(const std::string& what) noexcept {
  if (writes_here != nullptr) put_text(*writes_here, EventKind::kBroken, 0, what);
}

}  // namespace

ErrorClass class_of(const std::exception& error) {
  if (dynamic_cast<const ProtocolError*>(&error) != nullptr) return ErrorClass::kProtocol;
  if (dynamic_cast<const TopologyError*>(&error) != nullptr) return ErrorClass::kTopology;
  if (dynamic_cast<const TimeoutError*>(&error) != nullptr) return ErrorClass::kTimeout;
  if (dynamic_cast<const ConfigError*>(&error) != nullptr) return ErrorClass::kConfig;
  if (dynamic_cast<const ResourceError*>(&error) != nullptr) return ErrorClass::kResource;
  return ErrorClass::kOther;
}

void put_text(Recorder& to, EventKind kind, std::uint32_t number, std::string_view text,
              std::size_t most) {
  constexpr std::size_t kWord = sizeof(std::uint64_t);
  const bool is_cut = text.size() > most;
  Recorder::Draft draft =
      to.draft(kind, is_cut ? kTextWasCut : kNoFlags, number, (most + kWord - 1) / kWord);
  draft.add_text(text.substr(0, most));
  draft.end();
}

void put_error(Recorder& to, const std::exception& error) {
  put_text(to, EventKind::kThrew, static_cast<std::uint32_t>(class_of(error)), error.what());
}

Recorder* set_witness(Recorder* to) {
  static const bool is_watched = [] {
    set_check_witness(&record_broken);
    return true;
  }();
  static_cast<void>(is_watched);
  return std::exchange(writes_here, to);
}

Recorder* witness() { return writes_here; }

}  // namespace kvferry::recorder
