// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Open-file-description locks on bytes that need not exist. A lock ends with the last copy of its
/// descriptor, however the process ends and in any pid namespace. Several open files of one process
/// exclude each other. None of these functions waits.
namespace kvferry::cpu_tier {

/// Locks `count` bytes from `begin` exclusively for this open file. Returns 0, EAGAIN if another
/// open file holds any of them, or another errno.
[[nodiscard]] int lock_bytes(int descriptor, std::uint64_t begin, std::uint64_t count);
/// The same with a shared lock, which any number of open files can have.
[[nodiscard]] int share_bytes(int descriptor, std::uint64_t begin, std::uint64_t count);
/// Releases this open file's locks on them.
void unlock_bytes(int descriptor, std::uint64_t begin, std::uint64_t count) noexcept;
/// Whether another open file holds any kind of lock on any of them. False if that cannot be
/// determined.
[[nodiscard]] bool is_locked(int descriptor, std::uint64_t begin, std::uint64_t count = 1);

}  // namespace kvferry::cpu_tier
