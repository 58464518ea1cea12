// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/check.hpp"

#include <utility>
#include <variant>

namespace kvferry {

/// A value, or the expected other outcome as a value of type `Else` (a small named struct, such as
/// `Exhausted`). Move-only if `T` is. Reading the side that it does not hold is a broken invariant
/// and stops the process.
template <class T, class Else>
class [[nodiscard]] Result {
 public:
  // Implicit on purpose: `return reservation;` and `return Exhausted{};` both read well.
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}             // NOLINT
  Result(Else otherwise) : state_(std::in_place_index<1>, std::move(otherwise)) {}  // NOLINT

  [[nodiscard]] bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  [[nodiscard]] T& value() & {
    KVFERRY_CHECK(ok(), "value() of a Result that holds the other outcome");
    return std::get<0>(state_);
  }
  [[nodiscard]] const T& value() const& {
    KVFERRY_CHECK(ok(), "value() of a Result that holds the other outcome");
    return std::get<0>(state_);
  }
  [[nodiscard]] T&& value() && {
    KVFERRY_CHECK(ok(), "value() of a Result that holds the other outcome");
    return std::get<0>(std::move(state_));
  }
  [[nodiscard]] const Else& otherwise() const {
    KVFERRY_CHECK(!ok(), "otherwise() of a Result that holds a value");
    return std::get<1>(state_);
  }

 private:
  std::variant<T, Else> state_;
};

}  // namespace kvferry
