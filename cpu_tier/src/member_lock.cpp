// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/member_lock.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/base/error.hpp"
#include "kvferry/base/mixed_bits.hpp"
#include "kvferry/base/stable_hash.hpp"
#include "kvferry/cpu_tier/file_lock.hpp"

#include "unnamed_file.hpp"

#include <cerrno>
#include <fcntl.h>
#include <string>

namespace kvferry::cpu_tier {
namespace {

namespace fs = std::filesystem;

/// Above what any file holds and below what an offset can be.
constexpr LockBase kLowestBase = std::uint64_t{1} << 61U;
static_assert(kLowestBase % kMaxMembers == 0);

/// A file description of its own: locks of one do not meet each other.
OwnDescriptor open_anew(const fs::path& path) {
  OwnDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file) {
    throw ResourceError("shared tier " + path.string() + " cannot be opened: " + text_of(errno));
  }
  return file;
}

}  // namespace

LockBase lock_base_of(std::string_view instance) {
  const std::uint64_t bits = mixed_bits(stable_hash(instance));
  return kLowestBase | (bits & (kLowestBase - 1) & ~std::uint64_t{kMaxMembers - 1});
}

bool has_living_member(int descriptor, LockBase base) {
  return is_locked(descriptor, base, kMaxMembers);
}

MemberLock::MemberLock(const fs::path& path, LockBase base, std::uint32_t member)
    : file_(open_anew(path)) {
  KVFERRY_CHECK(base % kMaxMembers == 0 && member < kMaxMembers,
                "member " + std::to_string(member) + " of " + std::to_string(base));
  const int error = lock_bytes(file_.get(), base + member, 1);
  if (error == 0) return;
  const std::string who = member == 0 ? "the scheduler" : "rank " + std::to_string(member - 1);
  if (error == EAGAIN) {
    throw ResourceError(who + " of an engine with this engine's id is using the shared tier " +
                        path.string() +
                        " already, or has just died; give each engine an engine_id of its own, or "
                        "start this one again");
  }
  throw ResourceError("shared tier " + path.string() + " cannot be locked: " + text_of(error));
}

std::optional<DeathLock> DeathLock::try_take(const fs::path& path, LockBase base) {
  OwnDescriptor file = open_anew(path);
  const int error = lock_bytes(file.get(), base, kMaxMembers);
  if (error == 0) return DeathLock(std::move(file));
  if (error == EAGAIN) return std::nullopt;
  throw ResourceError("shared tier " + path.string() + " cannot be locked: " + text_of(error));
}

}  // namespace kvferry::cpu_tier
