// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/error.hpp"
#include "kvferry/cpu_tier/memory/memory_budget.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace kvferry::cpu_tier {

/// What the machine and its cgroups say, in a directory of its own that goes with it.
class MadeUpMachine {
 public:
  MadeUpMachine() {
    std::string name = ::testing::TempDir() + "kvferry_machine_XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw ResourceError("no temporary directory: " + name);
    directory_ = name;
    root = MachineRoot{directory_ / "proc", directory_ / "cgroup", directory_ / "claims"};
    std::filesystem::create_directory(root.claims);
  }
  ~MadeUpMachine() { std::filesystem::remove_all(directory_); }
  MadeUpMachine(const MadeUpMachine&) = delete;
  MadeUpMachine& operator=(const MadeUpMachine&) = delete;

  void write_proc(const std::string& file, const std::string& text) const {
    write(root.proc / file, text);
  }
  void write_cgroup(const std::string& file, const std::string& text) const {
    write(root.cgroup / file, text);
  }
  void write_available(std::uint64_t kib) const {
    write_proc("meminfo", "MemAvailable: " + std::to_string(kib) + " kB\n");
  }
  /// As limits are named.
  [[nodiscard]] std::string cgroup_name(const std::string& file, const std::string& level) const {
    return "cgroup " + file + " of " + (level.empty() ? root.cgroup : root.cgroup / level).string();
  }

  MachineRoot root;

 private:
  static void write(const std::filesystem::path& file, const std::string& text) {
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  std::filesystem::path directory_;
};

}  // namespace kvferry::cpu_tier
