// SPDX-License-Identifier: Apache-2.0
// Nothing is left running at the end of a process, in whatever order it and the driver go down.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <string>
#include <sys/wait.h>

namespace {

struct Ended {
  int status = -1;
  std::string output;
};

Ended run(const std::string& vendor, const std::string& way) {
  Ended ended;
  // What nobody destroyed is no leak here, and LeakSanitizer dies of the threads that still run.
  const std::string command = std::string("ASAN_OPTIONS=detect_leaks=0 ") + KVFERRY_EXIT_PROGRAM +
                              " " + vendor + " " + way + " 2>&1";
  FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return ended;
  std::array<char, 512> line{};
  while (std::fgets(line.data(), line.size(), pipe) != nullptr) ended.output += line.data();
  const int status = ::pclose(pipe);
  ended.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  return ended;
}

TEST(Exit, WithTransfersInFlightEndsQuietlyInEveryOrder) {
  for (const char* vendor : {"cuda", "hip"}) {
    for (const char* way : {"return", "static", "exit"}) {
      const Ended ended = run(vendor, way);
      EXPECT_EQ(ended.status, 0) << vendor << ' ' << way;
      EXPECT_EQ(ended.output, "") << vendor << ' ' << way;
    }
  }
}

}  // namespace
