// SPDX-License-Identifier: Apache-2.0
#include "fact_log.hpp"

#include <cstdio>
#include <exception>
#include <fcntl.h>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <unistd.h>

namespace kvferry::smoke {
namespace {

constexpr int kExitHung = 9;

/// As a string of JSON.
std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char letter : text) {
    if (letter == '"' || letter == '\\') result += '\\';
    result += static_cast<unsigned char>(letter) < 0x20 ? ' ' : letter;
  }
  return result + '"';
}

}  // namespace

FactLog::FactLog(const std::string& path, std::chrono::seconds limit) {
  if (!path.empty()) {
    file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (file_ < 0) throw std::runtime_error("cannot write " + path);
  }
  std::thread([this, end = Clock::now() + limit] { watch(end); }).detach();
}

void FactLog::watch(Clock::time_point end) const {
  std::this_thread::sleep_until(end);
  const std::string* const name = under_way_;
  say(name == nullptr ? "start" : *name, {false, "HUNG in or after it", 0, ""}, 0);
  ::_exit(kExitHung);
}

void FactLog::check(const std::string& name, const std::function<Fact()>& settle) {
  under_way_ = new std::string(name);  // the watcher may read it at any time
  const Clock::time_point begin = Clock::now();
  Fact fact;
  try {
    fact = settle();
  } catch (const std::exception& error) {
    fact = {false, error.what(), 0, ""};
  }
  all_ok_ = all_ok_ && fact.ok;
  say(name, fact, std::chrono::duration<double>(Clock::now() - begin).count());
}

void FactLog::say(const std::string& name, const Fact& fact, double seconds) const {
  const char* const good = fact.is_note ? "note" : "ok";
  const char* const result = fact.ok ? good : "failed";
  std::printf("%-6s %s: %s", result, name.c_str(), fact.detail.c_str());
  if (!fact.unit.empty()) std::printf(" %.3g %s", fact.value, fact.unit.c_str());
  std::printf(" (%.2f s)\n", seconds);
  std::fflush(stdout);
  if (file_ < 0) return;
  std::ostringstream line;
  line << "{\"fact\": " << quoted(name) << ", \"result\": \"" << result
       << "\", \"detail\": " << quoted(fact.detail) << ", \"value\": ";
  if (fact.unit.empty()) {
    line << "null";
  } else {
    line << fact.value;
  }
  line << ", \"unit\": " << quoted(fact.unit) << ", \"seconds\": " << seconds << "}\n";
  const std::string text = line.str();
  if (::write(file_, text.data(), text.size()) < 0) std::perror("kvferry-gpu-smoke");
}

}  // namespace kvferry::smoke
