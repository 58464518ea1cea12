// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/peers/member_lock.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/base/error.hpp"
#include "kvferry/base/mixed_bits.hpp"
#include "kvferry/base/stable_hash.hpp"
#include "kvferry/cpu_tier/memory/file_lock.hpp"
#include "kvferry/cpu_tier/memory/unnamed_file.hpp"

#include <cerrno>
#include <fcntl.h>
#include <string>

namespace kvferry::cpu_tier {
namespace {

/// Above the contents of any file, and below the largest offset.
constexpr LockBase kLowestBase = std::uint64_t{1} << 61U;
static_assert(kLowestBase % kMaxMembers == 0);

}  // namespace

OwnDescriptor LockFile::open_anew() const {
  const std::string by_descriptor = "/proc/self/fd/" + std::to_string(descriptor_);
  // A link of /proc is followed whatever its name is.
  OwnDescriptor file = descriptor_ < 0
                           ? OwnDescriptor::open(path_.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK)
                           : OwnDescriptor::open(by_descriptor.c_str(), O_RDWR);
  if (!file) {
    throw ResourceError("shared tier " + path_.string() + " cannot be opened: " + text_of(errno));
  }
  return file;
}

LockBase lock_base_of(std::string_view instance) {
  const std::uint64_t bits = mixed_bits(stable_hash(instance));
  return kLowestBase | (bits & (kLowestBase - 1) & ~std::uint64_t{kMaxMembers - 1});
}

bool is_lock_base(std::uint64_t word) {
  return word >= kLowestBase && word < 2 * kLowestBase && word % kMaxMembers == 0;
}

bool has_living_member(int descriptor, LockBase base) {
  return is_locked(descriptor, base, kMaxMembers);
}

MemberLock::MemberLock(const LockFile& file, LockBase base, std::uint32_t member)
    : file_(file.open_anew()), base_(base) {
  KVFERRY_CHECK(base % kMaxMembers == 0 && member < kMaxMembers,
                "member " + std::to_string(member) + " of " + std::to_string(base));
  const int error = lock_bytes(file_.get(), base + member, 1);
  if (error == 0) return;
  const std::string who = member == 0 ? "the scheduler" : "rank " + std::to_string(member - 1);
  if (error == EAGAIN) {
    throw ResourceError(who + " of this very engine uses the shared tier " + file.path().string() +
                        " already; two connectors of one engine cannot share a tier: name this "
                        "shared_path for one KvFerryConnector of MultiConnector only, and another "
                        "one, or none, for the other");
  }
  throw ResourceError("shared tier " + file.path().string() +
                      " cannot be locked: " + text_of(error));
}

bool MemberLock::try_take_all() const {
  return file_ && lock_bytes(file_.get(), base_, kMaxMembers) == 0;
}

std::optional<DeathLock> DeathLock::try_take(const LockFile& file, LockBase base) {
  OwnDescriptor anew = file.open_anew();
  const int error = lock_bytes(anew.get(), base, kMaxMembers);
  if (error == 0) return DeathLock(std::move(anew));
  if (error == EAGAIN) return std::nullopt;
  throw ResourceError("shared tier " + file.path().string() +
                      " cannot be locked: " + text_of(error));
}

}  // namespace kvferry::cpu_tier
