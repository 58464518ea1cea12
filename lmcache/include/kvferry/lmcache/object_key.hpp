// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/slots/block_key.hpp"

#include <string_view>

namespace kvferry::lmcache {

/// 128 well-mixed bits of a key, by which the tier finds its slot; the key itself is compared
/// there, so that two with the same digest cost a miss and never the other's bytes. The same in
/// every process and on every machine of one byte order. Not for secrets.
[[nodiscard]] cpu_tier::BlockKey digest_of(std::string_view key);

}  // namespace kvferry::lmcache
