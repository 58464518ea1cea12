// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <string>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

/// Files that get their name when they are complete: nobody sees half of one, and with a process
/// that ends before, it is gone.
namespace kvferry::cpu_tier {

/// A new file of this user's in `directory`; its descriptor, or -1 and errno.
inline int open_unnamed(const std::filesystem::path& directory) {
  return ::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
}

/// Gives it its name; 0, or an errno (EEXIST: the name is taken).
inline int give_name(int descriptor, const std::filesystem::path& path) {
  const std::string self = "/proc/self/fd/" + std::to_string(descriptor);
  return ::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0 ? 0
                                                                                          : errno;
}

inline std::string text_of(int error) { return std::generic_category().message(error); }

}  // namespace kvferry::cpu_tier
