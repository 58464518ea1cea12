// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/memory/shared_file.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/base/rounded_up.hpp"
#include "kvferry/base/test_hooks.hpp"
#include "kvferry/cpu_tier/memory/claim_turn.hpp"
#include "kvferry/cpu_tier/memory/host_mapping.hpp"
#include "kvferry/cpu_tier/memory/unnamed_file.hpp"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <limits>
#include <linux/magic.h>
#include <optional>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <system_error>
#include <unistd.h>

namespace kvferry::cpu_tier {
namespace {

namespace fs = std::filesystem;

/// Bytes that are reserved at a time: on tmpfs a signal undoes what one call has reserved so far.
constexpr std::uint64_t kStepBytes = std::uint64_t{64} << 20U;
/// The unit of st_blocks, on every file system (stat(2)).
constexpr std::uint64_t kBlockBytes = 512;

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U  // Linux 6.3, linux/memfd.h.  // NOLINT(readability-identifier-naming)
#endif

/// The mount point of the file system that has `directory`.
fs::path mount_of(const fs::path& directory) {
  std::error_code ignored;
  fs::path mount = fs::weakly_canonical(directory, ignored);
  struct stat here {};
  struct stat above {};
  if (::stat(mount.c_str(), &here) != 0) return directory;
  while (mount.has_relative_path() && ::stat(mount.parent_path().c_str(), &above) == 0 &&
         above.st_dev == here.st_dev) {
    mount = mount.parent_path();
  }
  return mount;
}

fs::path directory_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

bool is_there(const fs::path& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 || errno != ENOENT;
}

/// The directory of `path` or, if make_directory() would create it, the directory above.
fs::path nearest_directory(const fs::path& path) {
  const fs::path directory = directory_of(path);
  return is_there(directory) ? directory : directory_of(directory);
}

/// If a directory above `path` is closed to this user: which one, and what to do; empty otherwise.
std::string closed_directory(const fs::path& path) {
  fs::path directory = directory_of(path);
  struct stat status {};
  // A closed directory hides what is below it.
  while (::stat(directory.c_str(), &status) != 0 && directory.has_relative_path()) {
    directory = directory_of(directory);
  }
  const std::string user = std::to_string(::geteuid());
  if (::access(directory.c_str(), W_OK | X_OK) == 0) return {};
  return "; the directory " + directory.string() + " belongs to user " +
         std::to_string(status.st_uid) + " and is closed to user " + user +
         ": name a path in a directory of user " + user + ", such as /dev/shm/kvferry-" + user +
         "/tier";
}

/// The kind of pages of shared memory in that file system; nothing if it is not shared memory.
std::optional<PageKind> kind_of(const struct statfs& status) {
  if (status.f_type == HUGETLBFS_MAGIC) return PageKind::kPool;
  if (status.f_type == TMPFS_MAGIC) return PageKind::kNormal;
  return std::nullopt;
}

[[noreturn]] void refuse_file_system(const fs::path& path, const fs::path& directory) {
  throw ConfigError(path.string() + " is on " + mount_of(directory).string() +
                    ", which is neither a tmpfs nor a hugetlbfs: its memory would be a disk's "
                    "cache; name a path such as /dev/shm/kvferry/tier");
}

/// Creates the directory of `path`, for this user only, if only that level is missing. It does so
/// only in shared memory, so that a mistyped path leaves nothing behind. Throws ConfigError if that
/// is not shared memory.
void make_directory(const fs::path& path) {
  const fs::path directory = directory_of(path);
  struct statfs status {};
  if (is_there(directory)) {
    if (::statfs(directory.c_str(), &status) == 0 && !kind_of(status)) {
      refuse_file_system(path, directory);
    }
    return;
  }
  const fs::path above = directory_of(directory);
  if (::statfs(above.c_str(), &status) != 0) {
    throw ConfigError("there is no directory " + directory.string() + " for " + path.string() +
                      ", and none to create it in; only its last level is created: mkdir -p " +
                      above.string() + ", or name a path such as /dev/shm/kvferry/tier");
  }
  if (!kind_of(status)) refuse_file_system(path, above);
  if (::mkdir(directory.c_str(), S_IRWXU) == 0) {
    // The umask may have removed the user's own rights.
    static_cast<void>(::chmod(directory.c_str(), S_IRWXU));
  } else if (errno != EEXIST) {  // EEXIST: another process was faster.
    const std::string why = text_of(errno);
    throw ResourceError("the directory " + directory.string() + " for " + path.string() +
                        " cannot be created: " + why + closed_directory(directory));
  }
}

}  // namespace

SharedFile SharedFile::make_empty(const fs::path& path, std::uint64_t bytes) {
  SharedFile file(path);
  make_directory(path);
  const fs::path directory = directory_of(path);
  file.descriptor_ = OwnDescriptor::opened_by([&] { return open_unnamed(directory); });
  if (!file.descriptor_) {
    const int error = errno;
    const std::string message = "no file can be created in " + directory.string() + " for shared " +
                                "memory: " + text_of(error);
    if (error == EOPNOTSUPP || error == EISDIR || error == ENOENT || error == ENOTDIR) {
      throw ConfigError(message +
                        "; name a path in a directory of a tmpfs or hugetlbfs, such as "
                        "/dev/shm/kvferry/tier");
    }
    throw ResourceError(message + closed_directory(path));
  }
  file.look_at_file_system();
  if (bytes == 0 || bytes > std::numeric_limits<std::int64_t>::max() - file.page_bytes_) {
    throw ResourceError(path.string() + " cannot have " + std::to_string(bytes) + " bytes");
  }
  file.size_bytes_ = rounded_up(bytes, file.page_bytes_);
  // The umask may have removed the user's own rights.
  static_cast<void>(::fchmod(file.descriptor(), S_IRUSR | S_IWUSR));
  return file;
}

SharedFile SharedFile::make(const fs::path& path, std::uint64_t bytes, const MachineRoot& machine) {
  SharedFile file = make_empty(path, bytes);
  const std::unique_ptr<MemoryClaim> claim = file.claim_room(file.size_bytes_, machine);
  KVFERRY_PAUSE_POINT("shared_file.room_was_checked");
  file.reserve_part(0, file.size_bytes_);
  return file;
}

SharedFile SharedFile::make_partly(const fs::path& path, std::uint64_t bytes,
                                   std::uint64_t reserved_bytes, const MachineRoot& machine) {
  SharedFile file = make_empty(path, bytes);
  const std::uint64_t reserved = rounded_up(reserved_bytes, file.page_bytes_);
  const std::unique_ptr<MemoryClaim> claim = file.claim_room(reserved, machine);
  if (::ftruncate(file.descriptor(), static_cast<off_t>(file.size_bytes_)) != 0) {
    throw ResourceError("giving " + path.string() + " " + std::to_string(file.size_bytes_) +
                        " bytes failed: " + text_of(errno) + "; ask for less");
  }
  file.reserve_part(0, reserved);
  return file;
}

SharedFile SharedFile::open(const fs::path& path, Reserved expected) {
  std::optional<SharedFile> file = open_if_there(path, expected);
  if (file) return std::move(*file);
  throw ResourceError("shared memory " + path.string() + " cannot be opened: " + text_of(ENOENT));
}

std::optional<SharedFile> SharedFile::open_if_there(const fs::path& path, Reserved expected) {
  SharedFile file(path);
  file.descriptor_ = OwnDescriptor::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK);
  if (!file.descriptor_) {
    const int error = errno;
    if (error == ENOENT) return std::nullopt;
    throw ResourceError("shared memory " + path.string() + " cannot be opened: " + text_of(error) +
                        (error == EACCES ? closed_directory(path) : ""));
  }
  file.look_at_file_system();
  struct stat status {};
  if (::fstat(file.descriptor(), &status) != 0 || !S_ISREG(status.st_mode)) {
    throw ConfigError(path.string() + " is not a file: name one in shared memory");
  }
  if (status.st_uid != ::geteuid() || (status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    throw ConfigError(path.string() + " is of user " + std::to_string(status.st_uid) +
                      " or open to others; expected user " + std::to_string(::geteuid()) +
                      " and mode 0600: remove it, or name another path");
  }
  file.size_bytes_ = static_cast<std::uint64_t>(status.st_size);
  const std::uint64_t least = expected == Reserved::kWhole ? file.size_bytes_ : 1;
  if (file.size_bytes_ == 0 || file.reserved_bytes() < least) {
    throw ConfigError(path.string() + " has " + std::to_string(file.size_bytes_) +
                      " bytes, of which " + std::to_string(file.reserved_bytes()) +
                      " are reserved; it was not made by kvferry: remove it, or name another path");
  }
  return file;
}

std::uint64_t SharedFile::page_bytes_at(const fs::path& path) {
  struct statfs status {};
  const bool is_pool =
      ::statfs(nearest_directory(path).c_str(), &status) == 0 && kind_of(status) == PageKind::kPool;
  return is_pool ? static_cast<std::uint64_t>(status.f_bsize) : HostMapping::page_bytes();
}

void SharedFile::check_place(const fs::path& path, std::uint64_t bytes) {
  const fs::path directory = nearest_directory(path);
  struct statfs status {};
  if (::statfs(directory.c_str(), &status) != 0 || !fs::is_directory(directory)) {
    throw ConfigError("there is no directory " + directory.string() + " for " + path.string() +
                      "; only its last level is created: mkdir -p " + directory.string() +
                      ", or name a path such as /dev/shm/kvferry/tier");
  }
  if (!kind_of(status)) refuse_file_system(path, directory);
  if (::access(directory.c_str(), W_OK | X_OK) != 0) {
    const std::string why = text_of(errno);
    throw ResourceError("no file can be created in " + directory.string() +
                        " for shared memory: " + why + closed_directory(path));
  }
  SharedFile file(path);
  file.descriptor_ = OwnDescriptor::open(directory.c_str(), O_RDONLY | O_DIRECTORY);
  if (!file.descriptor_) return;
  if (const auto limit = file.limit_of_mount(bytes)) check_limits(bytes, {*limit});
}

SharedFile SharedFile::make_unnamed(std::uint64_t bytes, PageKind pages) {
  SharedFile file("memory without a name");
  const unsigned flags =
      MFD_CLOEXEC | MFD_ALLOW_SEALING | (pages == PageKind::kPool ? MFD_HUGETLB : 0U);
  // vm.memfd_noexec may require the seal, which older kernels do not know.
  file.descriptor_ = OwnDescriptor::opened_by([flags] {
    const int sealed = ::memfd_create("kvferry", flags | MFD_NOEXEC_SEAL);
    return sealed < 0 && errno == EINVAL ? ::memfd_create("kvferry", flags) : sealed;
  });
  if (!file.descriptor_) {
    throw ResourceError("making shared memory in " + std::string(to_string(pages)) +
                        " pages failed: " + text_of(errno));
  }
  file.look_at_file_system();
  file.pages_ = pages;
  if (bytes == 0 || bytes > std::numeric_limits<std::int64_t>::max() - file.page_bytes_) {
    throw ResourceError("shared memory cannot have " + std::to_string(bytes) + " bytes");
  }
  file.size_bytes_ = rounded_up(bytes, file.page_bytes_);
  // Processes that map the file rely on its size, because an access beyond the end is a signal.
  if (::ftruncate(file.descriptor(), static_cast<off_t>(file.size_bytes_)) != 0 ||
      ::fcntl(file.descriptor(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    throw ResourceError("giving shared memory " + std::to_string(file.size_bytes_) +
                        " bytes failed: " + text_of(errno));
  }
  return file;
}

SharedFile SharedFile::of_process(pid_t process, int descriptor, PageKind pages) {
  SharedFile file("/proc/" + std::to_string(process) + "/fd/" + std::to_string(descriptor));
  file.descriptor_ = OwnDescriptor::open(file.path_.c_str(), O_RDWR | O_NONBLOCK);
  if (!file.descriptor_) {
    throw ResourceError(file.path_.string() + " cannot be opened: " + text_of(errno));
  }
  file.look_at_file_system();
  struct stat status {};
  if (::fstat(file.descriptor(), &status) != 0 || !S_ISREG(status.st_mode) ||
      (::fcntl(file.descriptor(), F_GET_SEALS) & F_SEAL_SHRINK) == 0) {
    throw ConfigError(file.path_.string() + " is not shared memory of a fixed size");
  }
  file.pages_ = pages;
  file.size_bytes_ = static_cast<std::uint64_t>(status.st_size);
  return file;
}

void SharedFile::give_back(std::uint64_t offset, std::uint64_t bytes) const noexcept {
  if (pages_ == PageKind::kPool) return;
  // If it fails, the memory stays in use until the file is freed.
  static_cast<void>(::fallocate(descriptor(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                static_cast<off_t>(offset), static_cast<off_t>(bytes)));
}

std::uint64_t SharedFile::reserved_bytes() const {
  struct stat status {};
  if (::fstat(descriptor(), &status) != 0) return 0;
  return static_cast<std::uint64_t>(status.st_blocks) * kBlockBytes;
}

std::optional<MemoryLimit> SharedFile::limit_of_mount(std::uint64_t bytes) const {
  struct statvfs status {};
  if (::fstatvfs(descriptor(), &status) != 0 || status.f_blocks == 0) return std::nullopt;
  const std::string mount = mount_of(directory_of(path_)).string();
  const std::uint64_t used = (status.f_blocks - status.f_bavail) * std::uint64_t{status.f_frsize};
  return MemoryLimit{
      "the file system at " + mount, std::uint64_t{status.f_bavail} * status.f_frsize,
      "mount -o remount,size=" + std::to_string(used + bytes) + " " + mount +
          " (docker --shm-size, Kubernetes emptyDir with medium Memory and its sizeLimit), or ask "
          "for less"};
}

std::uint64_t SharedFile::inode() const {
  struct stat status {};
  return ::fstat(descriptor(), &status) == 0 ? status.st_ino : 0;
}

Published SharedFile::publish() {
  const int error = give_name(descriptor(), path_);
  if (error == 0) return Published::kYes;
  if (error == EEXIST) return Published::kNameIsTaken;
  throw ResourceError("shared memory cannot be named " + path_.string() + ": " + text_of(error));
}

void SharedFile::look_at_file_system() {
  struct statfs status {};
  const bool known = ::fstatfs(descriptor(), &status) == 0;
  const std::optional<PageKind> kind = known ? kind_of(status) : std::nullopt;
  if (!kind) refuse_file_system(path_, directory_of(path_));
  pages_ = *kind;
  page_bytes_ = static_cast<std::uint64_t>(status.f_bsize);
}

std::unique_ptr<MemoryClaim> SharedFile::claim_room(std::uint64_t bytes,
                                                    const MachineRoot& machine) const {
  if (const auto limit = limit_of_mount(bytes)) check_limits(bytes, {*limit});
  // /proc/meminfo does not report a pool of another page size, but the file system does.
  if (pages_ == PageKind::kPool && page_bytes_ != huge_page_pool(machine.proc).page_bytes) {
    return nullptr;
  }
  const ClaimTurn turn(machine);
  auto claim = std::make_unique<MemoryClaim>(bytes, pages_, ClaimGroup{}, machine);
  claim->check();
  return claim;
}

void SharedFile::reserve_part(std::uint64_t offset, std::uint64_t bytes) const {
  for (std::uint64_t done = 0; done < bytes;) {
    // The steps are whole pages, even of a gibibyte.
    const std::uint64_t step = std::min(std::max(kStepBytes, page_bytes_), bytes - done);
    int error = KVFERRY_FAULT_POINT("shared_file.reserve") ? ENOSPC : 0;
    if (error == 0 && ::fallocate(descriptor(), 0, static_cast<off_t>(offset + done),
                                  static_cast<off_t>(step)) != 0) {
      error = errno;
    }
    if (error == EINTR) continue;
    if (error != 0) {
      const auto limit = limit_of_mount(bytes - done);
      throw ResourceError("reserving " + std::to_string(bytes) + " bytes for " + path_.string() +
                          " failed after " + std::to_string(done) + " bytes: " + text_of(error) +
                          "; other programs took memory meanwhile" +
                          (limit ? ", " + limit->name + " leaves " +
                                       std::to_string(limit->room_bytes) + ": " + limit->remedy
                                 : ": ask for less"));
    }
    done += step;
  }
}

}  // namespace kvferry::cpu_tier
