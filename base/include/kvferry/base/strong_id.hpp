// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstddef>
#include <functional>

namespace kvferry {

/// An integer that identifies one kind of thing. Ids of different kinds cannot be converted,
/// compared or added. `Tag` is any type that is used nowhere else; `Rep` is an unsigned integer. A
/// default-constructed id is 0.
template <class Tag, class Rep>
class StrongId {
 public:
  using rep_type = Rep;  // NOLINT(readability-identifier-naming): named as in std::chrono

  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep value) : value_(value) {}

  [[nodiscard]] constexpr Rep value() const { return value_; }
  [[nodiscard]] constexpr StrongId next() const { return StrongId(static_cast<Rep>(value_ + 1)); }
  // clang-tidy 14 takes the 0 that a comparison is compared with for a pointer.
  constexpr auto operator<=>(const StrongId&) const = default;  // NOLINT(modernize-use-nullptr)

 private:
  Rep value_ = 0;
};

}  // namespace kvferry

template <class Tag, class Rep>
struct std::hash<kvferry::StrongId<Tag, Rep>> {
  std::size_t operator()(kvferry::StrongId<Tag, Rep> id) const noexcept {
    return std::hash<Rep>{}(id.value());
  }
};
