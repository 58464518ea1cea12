// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/block_key.hpp"

#include <cstdint>
#include <string_view>

namespace kvferry::lmcache {

/// 128 well-mixed bits of a key, by which the tier finds its slot; the key itself is compared
/// there, so that two with the same digest cost a miss and never the other's bytes. The same in
/// every process and on every machine of one byte order. Not for secrets.
[[nodiscard]] cpu_tier::BlockKey digest_of(std::string_view key);

/// Of what a record says beside its state (slot_record.hpp).
[[nodiscard]] std::uint64_t record_check(std::string_view key, std::uint64_t number,
                                         std::uint64_t value_bytes);

}  // namespace kvferry::lmcache
