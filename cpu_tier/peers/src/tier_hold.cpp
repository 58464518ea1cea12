// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/peers/tier_hold.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/base/test_hooks.hpp"
#include "kvferry/cpu_tier/memory/file_lock.hpp"
#include "kvferry/cpu_tier/memory/shared_file.hpp"
#include "kvferry/cpu_tier/memory/unnamed_file.hpp"

#include <cerrno>
#include <unistd.h>

namespace kvferry::cpu_tier {
namespace {

/// Beyond the contents of a file, and below the bytes of members (member_lock.cpp).
constexpr std::uint64_t kHoldByte = std::uint64_t{1} << 60U;

bool is_what_its_path_leads_to(const SharedFile& file) {
  struct stat named {};
  struct stat opened {};
  return ::lstat(file.path().c_str(), &named) == 0 && ::fstat(file.descriptor(), &opened) == 0 &&
         named.st_dev == opened.st_dev && named.st_ino == opened.st_ino;
}

}  // namespace

Held hold(const SharedFile& file) {
  const int error = share_bytes(file.descriptor(), kHoldByte, 1);
  if (error == EAGAIN) return Held::kIsGoing;
  if (error != 0) {
    throw ResourceError(file.path().string() + " cannot be locked: " + text_of(error));
  }
  KVFERRY_PAUSE_POINT("tier_hold.held");
  return is_what_its_path_leads_to(file) ? Held::kYes : Held::kIsGone;
}

void hold_unnamed(const SharedFile& file) {
  if (const int error = share_bytes(file.descriptor(), kHoldByte, 1); error != 0) {
    throw ResourceError(file.path().string() + " cannot be locked: " + text_of(error));
  }
}

void let_go(const SharedFile& file) noexcept { unlock_bytes(file.descriptor(), kHoldByte, 1); }

Removed remove_unless_held(const SharedFile& file) {
  // The lock is not turned into an exclusive one at once: two processes that tried it would block
  // each other.
  let_go(file);
  KVFERRY_PAUSE_POINT("tier_hold.let_go");
  if (lock_bytes(file.descriptor(), kHoldByte, 1) != 0) return Removed::kIsHeld;
  KVFERRY_PAUSE_POINT("tier_hold.alone");
  // No other process removes a file that only this process has, and no other file takes a used
  // name.
  if (is_what_its_path_leads_to(file)) ::unlink(file.path().c_str());
  KVFERRY_PAUSE_POINT("tier_hold.removed");
  unlock_bytes(file.descriptor(), kHoldByte, 1);
  return Removed::kYes;
}

}  // namespace kvferry::cpu_tier
