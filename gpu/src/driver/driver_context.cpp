// SPDX-License-Identifier: Apache-2.0
#include "driver/driver_context.hpp"

#include "kvferry/base/check.hpp"

#include <utility>

namespace kvferry::gpu {
namespace {

void check_none(std::uint64_t number, const char* what) {
  KVFERRY_CHECK(number == 0,
                "a device is destroyed before " + std::to_string(number) + " of its " + what);
}

}  // namespace

DriverContext::DriverContext(std::unique_ptr<DriverApi> driver, const DriverOptions& options)
    : api_(std::move(driver)), event_pool_(*this), pack_(*this, options.kernel_image) {}

DriverContext::~DriverContext() {
  check_none(num_streams, "streams");
  check_none(num_events, "events");
  check_none(host_ranges_.num_ranges(), "registrations");
}

DriverResult DriverContext::note(DriverResult result, const char* what) {
  const bool gone = result.status == DriverStatus::kGone;
  if (!gone && result.status != DriverStatus::kLost) return result;
  if (gone ? loss_.quiet() : lost()) return result;
  const std::string why = "could not " + std::string(what) + ": " + api_->describe(result.code);
  if (gone) {
    loss_.lose(LostMemory::kQuiet, why + "; the driver or its context was shut down before");
  } else {
    loss_.lose(LostMemory::kInDoubt,
               why + "; any earlier work of any library can be the cause; restart the process");
  }
  return result;
}

void DriverContext::check(DriverResult result, const char* what) {
  if (note(result, what).ok()) return;
  throw_if_lost();
  throw DeviceError(message(result, what));
}

std::string DriverContext::message(DriverResult result, const char* what) const {
  return "cannot " + std::string(what) + ": " + api_->describe(result.code);
}

}  // namespace kvferry::gpu
