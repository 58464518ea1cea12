// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/error.hpp"
#include "kvferry/base/test_hooks.hpp"
#include "kvferry/cpu_tier/peers/shared_tier.hpp"

#include "complaint.hpp"
#include "tier_path.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <fcntl.h>
#include <functional>
#include <memory>
#include <string>
#include <unistd.h>
#include <utility>

namespace kvferry::cpu_tier {

/// A shared tier's path, which goes with the test.
class SharedTierTest : public ::testing::Test {
 protected:
#ifdef KVFERRY_TEST_HOOKS
  ~SharedTierTest() override { test_hooks::reset(); }

  /// Runs `work` when the point is passed for the first time from now on, and not again within it.
  static void once_at(const char* point, std::function<void()> work) {
    auto is_done = std::make_shared<std::atomic<bool>>(false);
    test_hooks::on_pause(point, [is_done, work = std::move(work)] {
      if (!is_done->exchange(true)) work();
    });
  }
#endif

  [[nodiscard]] std::unique_ptr<SharedTier> open() const {
    return SharedTier::make_or_open(file_.options());
  }
  [[nodiscard]] std::string refusal(const SharedTierOptions& options) const {
    return complaint_of<ConfigError>([&] { static_cast<void>(SharedTier::make_or_open(options)); });
  }
  /// Overwrites a part of the file, as another version would have written it.
  template <class T>
  void patch(std::size_t offset, T value) const {
    const int file = ::open(file_.path.c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_GE(file, 0);
    EXPECT_EQ(::pwrite(file, &value, sizeof value, static_cast<off_t>(offset)),
              ssize_t{sizeof value});
    ::close(file);
  }

  const TierPath file_;
};

}  // namespace kvferry::cpu_tier
