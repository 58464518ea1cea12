// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"

namespace kvferry::connector {

/// Numbers the stores and loads of one scheduler side, in the order of their planning.
class TransferIds {
 public:
  [[nodiscard]] TransferId next() { return last_ = last_.next(); }

 private:
  TransferId last_;
};

}  // namespace kvferry::connector
