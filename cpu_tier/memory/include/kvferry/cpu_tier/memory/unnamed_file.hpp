// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <dirent.h>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

/// Files that get their name only when they are complete, so no process sees half of one; if the
/// process ends earlier, the file is gone. Also functions for files that already have names.
namespace kvferry::cpu_tier {

/// Makes a new file of this user in `directory`. Returns its descriptor, or -1 and errno.
inline int open_unnamed(const std::filesystem::path& directory) {
  return ::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
}

/// Gives the file its name. Returns 0, or an errno (EEXIST: the name is taken).
inline int give_name(int descriptor, const std::filesystem::path& path) {
  const std::string self = "/proc/self/fd/" + std::to_string(descriptor);
  return ::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0 ? 0
                                                                                          : errno;
}

/// Calls `visit(path, descriptor)` for each file of `directory` whose name has this prefix and that
/// can be opened with `access` (O_RDONLY, O_RDWR). The descriptor is closed after the call.
template <class Visit>
void visit_files(const std::filesystem::path& directory, std::string_view prefix, int access,
                 Visit&& visit) {
  // Not with std::filesystem, whose iterator ends the process if it cannot allocate memory.
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(directory.c_str()), &::closedir);
  if (!listing) return;
  while (const dirent* entry = ::readdir(listing.get())) {
    if (!std::string_view(entry->d_name).starts_with(prefix)) continue;
    const std::filesystem::path path = directory / entry->d_name;
    const int file = ::open(path.c_str(), access | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0) continue;
    visit(path, file);
    ::close(file);
  }
}

inline std::string text_of(int error) { return std::generic_category().message(error); }

}  // namespace kvferry::cpu_tier
