// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvferry::bench {

/// Populates memory as fast as a program can, as the reference for the arena. Each of `threads`
/// threads requests a part of `memory`, which begins at a huge page, by one MADV_POPULATE_WRITE. If
/// that is refused (before Linux 5.14), it writes to every page. Throws std::system_error if a
/// thread cannot be started.
void bare_populate(std::span<std::byte> memory, std::uint32_t threads);

}  // namespace kvferry::bench
