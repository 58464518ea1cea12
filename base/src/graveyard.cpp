// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/graveyard.hpp"

#include "kvferry/base/mutex.hpp"

#include <utility>
#include <vector>

namespace kvferry {
namespace {

struct Graveyard {
  Mutex mutex;
  std::vector<std::shared_ptr<void>> buried KVFERRY_GUARDED_BY(mutex);
};

}  // namespace

void bury(std::shared_ptr<void> object) {
  if (object == nullptr) return;
  // Never destroyed, because a static destructor would free its contents.
  static auto* const kGraveyard = new Graveyard;
  MutexLock lock(kGraveyard->mutex);
  kGraveyard->buried.push_back(std::move(object));
}

}  // namespace kvferry
