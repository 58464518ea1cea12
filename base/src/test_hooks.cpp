// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/test_hooks.hpp"

#ifdef KVFERRY_TEST_HOOKS

#include "kvferry/base/mutex.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace kvferry::test_hooks {
namespace {

struct Hooks {
  Mutex mutex;
  std::map<std::string, std::function<void()>> pauses KVFERRY_GUARDED_BY(mutex);
  std::map<std::string, std::uint64_t> named_faults KVFERRY_GUARDED_BY(mutex);
  std::vector<std::string> names KVFERRY_GUARDED_BY(mutex);
  std::uint64_t passages KVFERRY_GUARDED_BY(mutex) = 0;
  std::uint64_t faults KVFERRY_GUARDED_BY(mutex) = 0;
  std::uint64_t fail_in KVFERRY_GUARDED_BY(mutex) = 0;
};

Hooks& hooks() {
  // Never destroyed, because threads can pass points while the process ends.
  static auto* const kHooks = new Hooks;
  return *kHooks;
}

}  // namespace

void pause_point(const char* name) {
  std::function<void()> callback;
  {
    MutexLock lock(hooks().mutex);
    const auto found = hooks().pauses.find(name);
    if (found == hooks().pauses.end()) return;
    callback = found->second;
  }
  callback();
}

bool fault_point(const char* name) {
  Hooks& h = hooks();
  MutexLock lock(h.mutex);
  ++h.passages;
  if (std::find(h.names.begin(), h.names.end(), name) == h.names.end()) h.names.emplace_back(name);
  bool fail = h.fail_in != 0 && --h.fail_in == 0;
  const auto named = h.named_faults.find(name);
  if (named != h.named_faults.end() && --named->second == 0) {
    h.named_faults.erase(named);
    fail = true;
  }
  if (fail) ++h.faults;
  return fail;
}

void on_pause(const std::string& name, std::function<void()> callback) {
  MutexLock lock(hooks().mutex);
  if (callback) {
    hooks().pauses[name] = std::move(callback);
  } else {
    hooks().pauses.erase(name);
  }
}

void fail_nth(std::uint64_t nth) {
  MutexLock lock(hooks().mutex);
  hooks().fail_in = nth;
}

void fail_nth_of(const std::string& name, std::uint64_t nth) {
  MutexLock lock(hooks().mutex);
  if (nth == 0) {
    hooks().named_faults.erase(name);
  } else {
    hooks().named_faults[name] = nth;
  }
}

std::uint64_t num_faults() {
  MutexLock lock(hooks().mutex);
  return hooks().faults;
}

std::uint64_t num_fault_passages() {
  MutexLock lock(hooks().mutex);
  return hooks().passages;
}

std::vector<std::string> fault_names() {
  MutexLock lock(hooks().mutex);
  return hooks().names;
}

void reset() {
  Hooks& h = hooks();
  MutexLock lock(h.mutex);
  h.pauses.clear();
  h.named_faults.clear();
  h.names.clear();
  h.passages = 0;
  h.faults = 0;
  h.fail_in = 0;
}

}  // namespace kvferry::test_hooks

#endif
