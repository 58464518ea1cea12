// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

/// Damage on purpose, with a log, so that a test knows what a check of blocks must find.
namespace kvferry::gpu {

/// Where a block is when it is damaged.
enum class InjectionWay : std::uint8_t {
  kToTier,   ///< In a copy to host memory.
  kInTier,   ///< At rest in host memory.
  kFromTier  ///< In a copy from host memory, or in a scatter that reads host memory.
};

/// What happens to the block. At rest only the first three happen.
enum class InjectionKind : std::uint8_t {
  kFlip,        ///< One bit changes.
  kSwap,        ///< The block changes places with another one: of the same copy, or in the tier.
  kWrongSlot,   ///< A store writes another slot; a load reads one; a slot is copied over another.
  kOldVersion,  ///< The block is not copied: what was there before stays.
  kShort        ///< The copy ends within this block: the rest of the copy is missing.
};

struct InjectionOptions {
  /// Chance that a block which crosses the link is struck, or another one at rest in its place; 0:
  /// nothing is injected.
  double probability = 0;
  /// Events are added to this file, a line of JSON each, in place of the log in memory. Empty:
  /// none.
  std::string log_file = {};
};

/// An entry of the log. Differing bytes are those that are not what was stored last, or, of a load,
/// not what the last store of the slot brought.
struct InjectionEvent {
  enum class What : std::uint8_t {
    kInjected,  ///< An entry for each block that the injection touched.
    kArrived,  ///< A block of which bytes differ came to the device. One load of a block in several
               ///< runs makes several entries.
    kReplaced  ///< A damaged block in the tier was stored anew, or its memory was given back.
  };
  What what = What::kInjected;
  /// From 1. Of kArrived and kReplaced: the last one that touched the block.
  std::uint64_t injection = 0;
  InjectionWay way = InjectionWay::kToTier;
  InjectionKind kind = InjectionKind::kFlip;
  /// Host address of the block's slot: where the last store put it. Of a load of memory that no
  /// store wrote: where the run begins.
  std::uintptr_t slot = 0;
  /// The first byte that differs, counted from `slot`, and how many do. 0: the injection changed
  /// nothing.
  std::uint64_t first_byte = 0;
  std::uint64_t num_bytes = 0;
};

[[nodiscard]] const char* to_string(InjectionWay way);
[[nodiscard]] const char* to_string(InjectionKind kind);
[[nodiscard]] const char* to_string(InjectionEvent::What what);
/// A line of JSON, without its end.
[[nodiscard]] std::string to_json(const InjectionEvent& event);

}  // namespace kvferry::gpu
