// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace kvferry::ptx {

/// What a kernel did wrong.
enum class Hazard : std::uint8_t {
  kBounds,           ///< It touched memory that the launch did not give it, or against its rights.
  kAlignment,        ///< An address or a size is not a multiple of what the instruction asks for.
  kWrittenTwice,     ///< Two writes of one launch met the same byte of global memory.
  kReadBeforeWrite,  ///< It reads shared memory, and no lane knows that the bytes have arrived.
  kWriteBeforeRead,  ///< It overwrites shared memory that a bulk store may still read.
  kBarrier,          ///< It used an mbarrier against its rules.
  kUndefined,        ///< It read a register that nothing has written.
  kUnfinished,       ///< It ended before its bulk copies did.
  kStuck,            ///< It waits for what never comes, or does not end.
  kLaunch            ///< The launch does not fit the kernel.
};

/// The name without the k: "Bounds".
[[nodiscard]] const char* name_of(Hazard hazard);

/// A kernel broke a rule. `what()` begins with the hazard's name.
class Fault : public std::runtime_error {
 public:
  Fault(Hazard hazard, const std::string& what)
      : std::runtime_error(std::string(name_of(hazard)) + ": " + what), hazard_(hazard) {}
  /// The same fault, and where it happened.
  [[nodiscard]] Fault at(const std::string& where) const { return {*this, where}; }
  [[nodiscard]] Hazard hazard() const { return hazard_; }

 private:
  Fault(const Fault& fault, const std::string& where)
      : std::runtime_error(std::string(fault.what()) + "\n  " + where), hazard_(fault.hazard_) {}

  Hazard hazard_;
};

/// The interpreter cannot read the text. The message names the line.
class UnknownPtx : public std::runtime_error {
 public:
  UnknownPtx(int line, const std::string& what)
      : std::runtime_error("PTX line " + std::to_string(line) + ": " + what) {}
};

}  // namespace kvferry::ptx
