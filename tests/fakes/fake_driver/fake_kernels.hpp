// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace kvferry::fakes {

/// Whether there is a kernel of the name.
[[nodiscard]] bool is_kernel(const std::string& name);

/// Bytes of the parameter of the kernel `name`.
[[nodiscard]] std::size_t parameter_bytes(const std::string& name);

/// Runs every thread of a launch, one after the other. `parameter` is the kernel's. `memory` turns
/// an address of the device's into one of the process, or null if the range is not the device's;
/// then the process stops.
void run_kernel(const std::string& name, unsigned num_ctas, unsigned num_threads,
                std::span<const std::byte> parameter,
                const std::function<void*(std::uint64_t, std::size_t)>& memory);

}  // namespace kvferry::fakes
