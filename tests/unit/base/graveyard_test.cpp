// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/graveyard.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

namespace kvferry {
namespace {

TEST(Graveyard, WhatIsBuriedIsNeverDestroyed) {
  auto object = std::make_shared<int>(1);
  const std::weak_ptr<int> seen = object;
  bury(std::move(object));
  EXPECT_FALSE(seen.expired());
}

TEST(Graveyard, TakesOwnersOfAnyKindAndNull) {
  bury(std::make_unique<std::pair<int, int>>(1, 2));
  bury(nullptr);
}

}  // namespace
}  // namespace kvferry
