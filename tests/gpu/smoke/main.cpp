// SPDX-License-Identifier: Apache-2.0
#include "facts.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <memory>
#include <spawn.h>
#include <stdexcept>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace kvferry::smoke {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;
constexpr int kExitNoDevice = 3;
constexpr int kExitHung = 9;

struct Options {
  std::string backend = "cuda";
  std::string json;
  int seconds = 60;
  bool quick = false;
  std::string group;
};

Options parse(const std::vector<std::string>& words) {
  Options options;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--quick") {
      options.quick = true;
      continue;
    }
    if (i + 1 == words.size()) throw std::runtime_error(words[i] + " needs a value");
    const std::string& value = words[i + 1];
    if (words[i] == "--backend") {
      options.backend = value;
    } else if (words[i] == "--json") {
      options.json = value;
    } else if (words[i] == "--seconds") {
      options.seconds = std::clamp(std::stoi(value), 1, 600);
    } else if (words[i] == "--group") {
      options.group = value;  // of a process that this one starts
    } else {
      throw std::runtime_error("there is no option " + words[i]);
    }
    ++i;
  }
  for (const char* const name : {"cuda", "hip", "cuda_stand_in", "hip_stand_in"}) {
    if (options.backend == name) return options;
  }
  throw std::runtime_error("there is no back end " + options.backend);
}

int settle(const Options& options) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // whoever ends the program ends its group
  FactLog log(options.json, std::chrono::seconds(options.seconds));
  std::unique_ptr<SmokeDevice> device;
  bool absent = false;
  log.check("open the device for " + options.group, [&] {
    absent = true;
    device = std::make_unique<SmokeDevice>(SmokeBackend{options.backend});
    absent = false;
    return Fact{true, "", 0, ""};
  });
  if (absent) return kExitNoDevice;
  for (const FactGroup& group : fact_groups()) {
    if (group.name != options.group) continue;
    try {
      group.settle(log, *device, options.quick ? Effort::kQuick : Effort::kFull);
    } catch (const std::exception& error) {
      log.check("group " + group.name, [&] { return Fact{false, error.what(), 0, ""}; });
    }
  }
  std::fflush(nullptr);
  // Without the driver's destructors, which a fault may keep waiting.
  ::_exit(log.all_ok() ? 0 : kExitFailed);
}

/// The exit status of a process of this program that settles `group`; a signal counts as failed.
int run_group(const Options& options, const std::string& group, int seconds) {
  std::vector<std::string> words = {
      "kvferry-gpu-smoke",    "--backend", options.backend, "--group", group, "--seconds",
      std::to_string(seconds)};
  if (options.quick) words.emplace_back("--quick");
  if (!options.json.empty()) words.insert(words.end(), {"--json", options.json});
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t child = 0;
  if (::posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, argv.data(), environ) != 0) {
    return kExitFailed;
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  FactLog log(options.json, std::chrono::seconds(seconds));
  const int signal = WTERMSIG(status);
  log.check("group " + group, [&] {
    return Fact{false, "its process ended by signal " + std::to_string(signal), 0, ""};
  });
  return kExitFailed;
}

int settle_all(const Options& options) {
  if (!options.json.empty()) std::remove(options.json.c_str());
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(options.seconds);
  int worst = 0;
  for (const FactGroup& group : fact_groups()) {
    const auto left =
        std::chrono::duration_cast<std::chrono::seconds>(end - std::chrono::steady_clock::now());
    const int code =
        run_group(options, group.name, std::max<int>(1, static_cast<int>(left.count())));
    if (code == kExitNoDevice || code == kExitHung) return code;
    worst = std::max(worst, code);
  }
  return worst;
}

}  // namespace
}  // namespace kvferry::smoke

int main(int argc, char** argv) {
  try {
    const kvferry::smoke::Options options = kvferry::smoke::parse({argv + 1, argv + argc});
    return options.group.empty() ? kvferry::smoke::settle_all(options)
                                 : kvferry::smoke::settle(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvferry-gpu-smoke: %s\n", error.what());
    return kvferry::smoke::kExitUsage;
  }
}
