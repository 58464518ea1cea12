// SPDX-License-Identifier: Apache-2.0
#include "interpreter/fault.hpp"

namespace kvferry::ptx {

const char* name_of(Hazard hazard) {
  switch (hazard) {
    case Hazard::kBounds:
      return "Bounds";
    case Hazard::kAlignment:
      return "Alignment";
    case Hazard::kWrittenTwice:
      return "WrittenTwice";
    case Hazard::kReadBeforeWrite:
      return "ReadBeforeWrite";
    case Hazard::kWriteBeforeRead:
      return "WriteBeforeRead";
    case Hazard::kBarrier:
      return "Barrier";
    case Hazard::kUndefined:
      return "Undefined";
    case Hazard::kUnfinished:
      return "Unfinished";
    case Hazard::kStuck:
      return "Stuck";
    case Hazard::kLaunch:
      return "Launch";
  }
  return "?";
}

}  // namespace kvferry::ptx
