// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

namespace kvferry::gpu {

/// Whether a value of our type goes where the driver expects one of its own: the same size, and a
/// pointer or a floating-point number like it.
template <class Ours, class Theirs>
inline constexpr bool kSameValue =
    sizeof(Ours) == sizeof(Theirs) &&
    std::is_pointer_v<Ours> == std::is_pointer_v<Theirs>&& std::is_floating_point_v<Ours> ==
        std::is_floating_point_v<Theirs>;

template <class Ours, class Theirs>
struct SameShape : std::false_type {};
template <class OurResult, class TheirResult, class... Ours, class... Theirs>
requires(sizeof...(Ours) ==
         sizeof...(Theirs)) struct SameShape<OurResult (*)(Ours...), TheirResult (*)(Theirs...)>
    : std::bool_constant<kSameValue<OurResult, TheirResult> && (kSameValue<Ours, Theirs> && ...)> {
};

/// Whether a pointer to one of our functions goes where the driver expects one of its own: the same
/// number of parameters, and each value the same.
template <class Ours, class Theirs>
inline constexpr bool kSame = SameShape<Ours, Theirs>::value;

}  // namespace kvferry::gpu
