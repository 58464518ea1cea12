// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Decides which processes have a named file of shared memory open, and which process removes it.
/// Each process that has it open holds a shared lock (file_lock.hpp) on a byte; the process that
/// removes it has an exclusive lock on the same byte. So a file that is held is never removed, and
/// a process that ends at any point leaves no lock:
///
///     open -> hold -> is it still what its path leads to? -> use; else open anew
///     let go -> have it alone? -> is it what its path leads to? -> unlink; else leave it
///
/// If several processes let go at the same time, the last one finds no other. No process waits for
/// another.
namespace kvferry::cpu_tier {

class SharedFile;

enum class Held : std::uint8_t {
  kYes,  ///< Held until let_go() or remove_unless_held(), or as long as the file is open or mapped.
  kIsGone,  ///< Its path leads elsewhere.
  kIsGoing  ///< A process tries to remove it; the file can still stay.
};
/// Throws ResourceError if the file cannot be locked.
[[nodiscard]] Held hold(const SharedFile& file);
/// The same for a file that has no name yet, so no other process has it.
void hold_unnamed(const SharedFile& file);

/// Releases the hold.
void let_go(const SharedFile& file) noexcept;

enum class Removed : std::uint8_t {
  kYes,  ///< This process or another one has removed it.
  kIsHeld
};
/// Releases the hold, and unlinks the file if no process holds it.
[[nodiscard]] Removed remove_unless_held(const SharedFile& file);

}  // namespace kvferry::cpu_tier
