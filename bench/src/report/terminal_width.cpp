// SPDX-License-Identifier: Apache-2.0
#include "report/terminal_width.hpp"

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <sys/ioctl.h>
#include <unistd.h>

namespace kvferry::bench {

std::size_t width_of(const std::ostream& out) {
  if (const char* const columns = std::getenv("COLUMNS"); columns != nullptr) {
    std::size_t width = 0;
    const char* const end = columns + std::strlen(columns);
    const auto parsed = std::from_chars(columns, end, width);
    if (parsed.ec == std::errc() && parsed.ptr == end && width != 0) return width;
  }
  struct winsize size = {};
  if (&out == &std::cout && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col != 0) {
    return size.ws_col;
  }
  return kUsualWidth;
}

}  // namespace kvferry::bench
