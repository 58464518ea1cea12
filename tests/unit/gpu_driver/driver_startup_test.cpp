// SPDX-License-Identifier: Apache-2.0
#include "driver_test.hpp"
#include "kernels/code_objects.hpp"

namespace kvferry::gpu {
namespace {

class DriverStartup : public DriverTest {
 protected:
  /// One line that contains all of `parts`, from the factory and from the probe alike.
  void expect_refusal(const std::string& library, std::initializer_list<const char*> parts) {
    const std::string why = refusal(library);
    for (const char* part : parts) EXPECT_NE(why.find(part), std::string::npos) << why;
    EXPECT_EQ(why.find('\n'), std::string::npos);
    const BackendAvailability probed = vendor().availability({.library = library});
    EXPECT_FALSE(probed.available());
    EXPECT_EQ(probed.why_not, why);
    try {
      std::ignore = vendor().find({.library = library});
      ADD_FAILURE() << "found devices";
    } catch (const DeviceError& error) {
      EXPECT_EQ(error.what(), why);
    }
  }
};
KVFERRY_INSTANTIATE_VENDORS(DriverStartup);

TEST_P(DriverStartup, ProbeCountsDevices) {
  const BackendAvailability probed = vendor().availability({.library = vendor().library});
  EXPECT_TRUE(probed.available()) << probed.why_not;
  EXPECT_GE(probed.num_devices, 1U);
}

TEST_P(DriverStartup, DevicesAreFoundWithoutAContext) {
  if (vendor().name == "cuda") control().fail_nth("cuDevicePrimaryCtxRetain", 1, 100);
  const std::vector<FoundDevice> found = vendor().find({.library = vendor().library});
  ASSERT_FALSE(found.empty());
  EXPECT_NE(found[0].name.find("stand-in"), std::string::npos) << found[0].name;
  EXPECT_EQ(found[0].architecture, vendor().name == "cuda" ? "sm_90" : "gfx90a");
  EXPECT_EQ(found[0].driver, vendor().name == "cuda" ? "CUDA driver 13.0" : "HIP 7.1");
  EXPECT_EQ(found[0].pci_address, "0000:c1:00.0");
  if (vendor().name == "cuda") {
    EXPECT_EQ(found[0].kernels, cuda_code_for(90));
  } else {
    EXPECT_EQ(found[0].kernels, hip_code_object("gfx90a").empty() ? "hipRTC" : "gfx90a");
  }
}

TEST_P(DriverStartup, MissingLibraryIsNamedWithWhatToDo) {
  expect_refusal("libno_such_driver.so.1", {"libno_such_driver.so.1", "install"});
}

TEST_P(DriverStartup, LibraryThatIsNoDriverIsNamed) {
  expect_refusal(KVFERRY_FAKE_NOTHING, {"fake_nothing", "version", "install"});
}

TEST_P(DriverStartup, DriverBelowTheFloorIsToldBothVersionsAndWhatToDo) {
  control().set_version(vendor().first_too_old);
  expect_refusal(vendor().library,
                 {vendor().name == "cuda" ? "12.3" : "5.7", "this build needs", "update"});
}

TEST_P(DriverStartup, MissingFunctionIsNamed) {
  if (vendor().name == "hip") GTEST_SKIP() << "what the stand-in exports is fixed";
  control().hide("cuStreamWaitEvent");
  expect_refusal(vendor().library, {"cuStreamWaitEvent", "3.2", "13.0", "update"});
}

TEST_P(DriverStartup, FailedInitialisationIsExplained) {
  control().fail_nth(vendor().init, 1, 100);
  EXPECT_NE(refusal(vendor().library).find("VISIBLE_DEVICES"), std::string::npos);
}

TEST_P(DriverStartup, UnknownOrdinalIsToldHowManyThereAre) {
  const std::string why = refusal(vendor().library, 7);
  EXPECT_NE(why.find("device 7"), std::string::npos) << why;
  EXPECT_NE(why.find(vendor().name == "cuda" ? "sees 1" : "sees 2"), std::string::npos) << why;
  EXPECT_THROW(std::ignore = vendor().make(4'000'000'000U, {.library = vendor().library}),
               ConfigError);
}

TEST_P(DriverStartup, DescriptionNamesDeviceArchitectureAndDriver) {
  const std::string text = device().description();
  EXPECT_NE(text.find("stand-in"), std::string::npos) << text;
  EXPECT_NE(text.find(vendor().name == "cuda" ? "sm_90" : "gfx90a,"), std::string::npos) << text;
  EXPECT_NE(text.find(vendor().name == "cuda" ? "CUDA driver 13.0" : "HIP 7.1"), std::string::npos)
      << text;
}

}  // namespace
}  // namespace kvferry::gpu
