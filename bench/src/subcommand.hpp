// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"

#include "measure/verifier.hpp"
#include "options/common_options.hpp"
#include "report/report.hpp"
#include "report/row_stream.hpp"

namespace CLI {
class App;
}

namespace kvferry::bench {

class Progress;

/// The environment of a running subcommand.
struct Bench {
  gpu::Device& device;
  const CommonOptions& options;
  Verifier& verifier;
  Progress& progress;
  RowStream& rows;

  /// Whether this is a GPU: neither the host back end nor a stand-in driver.
  [[nodiscard]] bool on_gpu() const {
    return device.kind() != gpu::BackendKind::kHost &&
           options.device_choice().driver == DeviceChoice::Driver::kReal;
  }
  /// Whether rows are compared with the performance model, which describes GPUs.
  [[nodiscard]] bool is_modelled() const {
    return on_gpu() || (options.model_stand_in && device.kind() != gpu::BackendKind::kHost);
  }
};

/// One subcommand. To add one, add a file with its name, and a line in subcommands.cpp, or in the
/// laboratory's lab_subcommands.cpp.
class Subcommand {
 public:
  virtual ~Subcommand() = default;
  [[nodiscard]] virtual const char* name() const = 0;
  /// One line for the list of subcommands.
  [[nodiscard]] virtual const char* summary() const = 0;
  /// False: it does not measure a device. It runs with the host back end's, and naming another
  /// device is bad usage.
  [[nodiscard]] virtual bool uses_device() const { return true; }
  /// Adds its options. `app` and the added options refer to this object.
  virtual void add_options(CLI::App& app) = 0;
  /// Called before a device is opened. Throws a ConfigError with a hint if the options are wrong.
  virtual void check_options(const CommonOptions& options) = 0;
  /// Measures step by step, each by `bench.rows`, and adds other results to `report`. It reports
  /// wrong bytes to `bench.verifier` and in the row. Throws kvferry::Error.
  virtual void run(Bench& bench, Report& report) = 0;
};

}  // namespace kvferry::bench
