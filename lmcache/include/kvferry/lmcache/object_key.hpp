// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/slots/block_key.hpp"

#include <string_view>

namespace kvferry::lmcache {

/// 128 well-mixed bits of a key, with which the tier finds its slot. The slot's full key is then
/// compared, so two keys with the same digest cause a miss, never wrong bytes. The same in every
/// process and on all machines with the same byte order. Not for secrets.
[[nodiscard]] cpu_tier::BlockKey digest_of(std::string_view key);

}  // namespace kvferry::lmcache
