// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Which processes have a named file of shared memory open, and which may remove it. Each holds it
/// by a lock that many can have (file_lock.hpp); the process that removes it has the same byte
/// alone. So a file that is held is never removed, and a process that ends anywhere leaves neither:
///
///     open -> hold -> is it still what its path leads to? -> use; else open anew
///     let go -> have it alone? -> is it what its path leads to? -> unlink; else leave it
///
/// If several let go at once, the last finds no other. No process waits for another.
namespace kvferry::cpu_tier {

class SharedFile;

enum class Held : std::uint8_t {
  kYes,     ///< Until let_go() or remove_unless_held(), or as long as the file is open or mapped.
  kIsGone,  ///< Its path leads elsewhere.
  kIsGoing  ///< A process is removing it: it may stay, though.
};
/// Throws ResourceError if the file cannot be locked.
[[nodiscard]] Held hold(const SharedFile& file);
/// Before the file has a name: no other process has it. Throws the same.
void hold_unnamed(const SharedFile& file);

/// Holds it no more.
void let_go(const SharedFile& file) noexcept;

enum class Removed : std::uint8_t {
  kYes,  ///< Or another one has done so.
  kIsHeld
};
/// Lets go, and takes the file's name away if no process holds it.
[[nodiscard]] Removed remove_unless_held(const SharedFile& file);

}  // namespace kvferry::cpu_tier
