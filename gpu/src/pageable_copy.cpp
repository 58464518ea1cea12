// SPDX-License-Identifier: Apache-2.0
#include "kvferry/gpu/pageable_copy.hpp"

#include "kvferry/base/check.hpp"

#include "driver/driver_device.hpp"
#include "driver/driver_scope.hpp"
#include "driver/driver_stream.hpp"
#include "host/host_stream.hpp"

#include <cstring>

namespace kvferry::gpu {

void copy_pageable(Device& device, Stream& stream, CopyDirection direction, const CopyRun& run) {
  if (auto* const host = dynamic_cast<HostStream*>(&stream)) {
    host->call([run] {
      std::memcpy(reinterpret_cast<void*>(run.destination),
                  reinterpret_cast<const void*>(run.source), run.bytes);
    });
    return;
  }
  auto* const driver = dynamic_cast<DriverDevice*>(&device);
  auto* const driver_stream = dynamic_cast<DriverStream*>(&stream);
  KVFERRY_CHECK(driver != nullptr && driver_stream != nullptr, "a device of an unknown back end");
  DriverContext& context = driver->context();
  const DriverScope scope(context);
  context.throw_if_lost();
  context.check(context.api().copy(direction, run, driver_stream->native_handle()),
                "copy pageable memory");
  driver_stream->note_foreign_work();
}

}  // namespace kvferry::gpu
