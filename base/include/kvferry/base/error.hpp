// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

namespace kvferry {

/// Root of all exceptions that kvferry throws. An exception means that the environment or the
/// caller is at fault. The message says what was wrong, what was expected and what to do. Expected
/// outcomes (pool full, miss, cancelled) are values, never exceptions.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A configuration value that cannot be used.
class ConfigError : public Error {
 public:
  using Error::Error;
};

/// The machine has too little of a resource (memory, a limit).
class ResourceError : public Error {
 public:
  using Error::Error;
};

/// Two sides disagree about world size, rank, layout or version; the message names both.
class TopologyError : public Error {
 public:
  using Error::Error;
};

/// A plan or report that cannot be decoded or does not fit the state it meets.
class ProtocolError : public Error {
 public:
  using Error::Error;
};

/// A device call failed.
class DeviceError : public Error {
 public:
  using Error::Error;
};

/// A wait reached its bound.
class TimeoutError : public Error {
 public:
  using Error::Error;
};

}  // namespace kvferry
