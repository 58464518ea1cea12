// SPDX-License-Identifier: Apache-2.0
#include "device_factory.hpp"

#include <gtest/gtest.h>

namespace kvferry::gpu {
namespace {

const Backend kPresent = {"host", BackendKind::kHost, &open_host_device, ""};
const Backend kAbsent = {"hip", BackendKind::kHip, nullptr, "there is no such library"};

TEST(RequiredBackend, APresentOneRuns) {
  EXPECT_EQ(absence_of(kPresent, "").text, "");
  EXPECT_EQ(absence_of(kPresent, "host").text, "");
  EXPECT_EQ(absence_of(kPresent, "hip").text, "");
}

TEST(RequiredBackend, AnAbsentOneIsSkippedWithItsReason) {
  const Absence absence = absence_of(kAbsent, "cuda");
  EXPECT_FALSE(absence.is_failure);
  EXPECT_NE(absence.text.find(kAbsent.why_absent), std::string::npos) << absence.text;
}

TEST(RequiredBackend, AnAbsentOneThatIsRequiredFailsWithItsReason) {
  const Absence absence = absence_of(kAbsent, "hip");
  EXPECT_TRUE(absence.is_failure);
  EXPECT_NE(absence.text.find(kAbsent.why_absent), std::string::npos) << absence.text;
}

TEST(RequiredBackend, ANameThatNoBackEndHasFailsEveryTestAndListsTheNames) {
  for (const Backend& backend : {kPresent, kAbsent}) {
    const Absence absence = absence_of(backend, "cudda");
    EXPECT_TRUE(absence.is_failure);
    EXPECT_NE(absence.text.find("cudda"), std::string::npos) << absence.text;
    EXPECT_NE(absence.text.find("cuda_stand_in"), std::string::npos) << absence.text;
  }
}

}  // namespace
}  // namespace kvferry::gpu
