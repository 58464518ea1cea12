// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

/// Passes options from Python to the core: a table for each consumer, with a row for each key.
/// Every call needs the GIL.
namespace kvferry::python {

namespace py = pybind11;

/// Longest time that an option can have, in seconds: 31 years. Sums of several such times and the
/// monotonic clock stay far below the limit of nanoseconds in 64 bits.
inline constexpr double kMaxSeconds = 1e9;

/// The value that Python gave for a key. Each function that reads it throws a ConfigError for an
/// unexpected value; the message names the key, the value and what is expected.
class OptionValue {
 public:
  /// `name`: the name for messages, such as "WorkerEngine: slots_per_chunk[0]".
  OptionValue(std::string name, py::object value)
      : name_(std::move(name)), value_(std::move(value)) {}

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] bool flag() const;
  [[nodiscard]] std::uint64_t whole_number(std::uint64_t most) const;
  [[nodiscard]] double number() const;
  [[nodiscard]] bool is_text() const;
  [[nodiscard]] std::string text() const;
  /// From 0 to kMaxSeconds, like the next function.
  [[nodiscard]] std::chrono::nanoseconds seconds() const;
  [[nodiscard]] std::chrono::nanoseconds microseconds() const;
  [[nodiscard]] py::dict mapping() const;
  /// An object of a class of this module that Python shares; `name` is the class's.
  template <class T>
  [[nodiscard]] std::shared_ptr<T> shared(const char* name) const {
    if (!py::isinstance<T>(value_)) refuse(name);
    return value_.cast<std::shared_ptr<T>>();
  }
  /// The elements of a list or tuple; exactly `size` elements, if `size` is given.
  [[nodiscard]] std::vector<OptionValue> elements(
      std::optional<std::size_t> size = std::nullopt) const;
  /// Throws the ConfigError.
  [[noreturn]] void refuse(const std::string& expected) const;

 private:
  [[nodiscard]] std::chrono::nanoseconds duration(double units_per_second, const char* unit) const;

  std::string name_;
  py::object value_;
};

template <class T>
[[nodiscard]] T read(const OptionValue& value);

/// Reads each type of field; durations are in seconds.
template <class T>
struct OptionReader {
  static T read(const OptionValue& value) {
    if constexpr (std::is_same_v<T, bool>) {
      return value.flag();
    } else if constexpr (std::is_unsigned_v<T>) {
      return static_cast<T>(value.whole_number(std::numeric_limits<T>::max()));
    } else if constexpr (std::is_floating_point_v<T>) {
      return static_cast<T>(value.number());
    } else if constexpr (std::is_same_v<T, std::chrono::nanoseconds>) {
      return value.seconds();
    } else if constexpr (requires { typename T::rep_type; }) {
      return T(python::read<typename T::rep_type>(value));
    } else {
      static_assert(std::is_same_v<T, std::string> || std::is_same_v<T, std::filesystem::path>);
      return value.text();
    }
  }
};

template <class T>
struct OptionReader<std::optional<T>> {
  static std::optional<T> read(const OptionValue& value) { return python::read<T>(value); }
};

template <class T>
struct OptionReader<std::vector<T>> {
  static std::vector<T> read(const OptionValue& value) {
    std::vector<T> out;
    for (const OptionValue& element : value.elements()) out.push_back(python::read<T>(element));
    return out;
  }
};

template <class... T>
struct OptionReader<std::tuple<T...>> {
  static std::tuple<T...> read(const OptionValue& value) {
    const std::vector<OptionValue> elements = value.elements(sizeof...(T));
    auto next = elements.begin();
    return {python::read<T>(*next++)...};
  }
};

template <class T>
T read(const OptionValue& value) {
  return OptionReader<T>::read(value);
}

enum class Presence : std::uint8_t {
  kOptional,  ///< If it is left out or None, the field keeps the default of its struct.
  kRequired
};

/// A key, and how its value changes the options. If users have a name for it, the key has that
/// name. Its field has the same name, without a unit that the field's type implies, and without a
/// prefix that its struct implies (`shared_`).
template <class Options>
struct OptionKey {
  const char* name;
  void (*set)(Options& options, const OptionValue& value);
  Presence presence = Presence::kOptional;
};

/// Sets the field at the end of `Members`, each a member of the one before; its type says how the
/// value is read.
template <auto... Members, class Options>
void set_field(Options& options, const OptionValue& value) {
  auto& field = (options.*....*Members);
  field = read<std::remove_reference_t<decltype(field)>>(value);
}

/// The same, but `Read` reads the value.
template <auto Read, auto... Members, class Options>
void set_field_by(Options& options, const OptionValue& value) {
  (options.*....*Members) = Read(value);
}

/// The value given for `key`; unset if there is none, or if it is None.
[[nodiscard]] std::optional<OptionValue> find_option(const std::string& consumer, const char* key,
                                                     const py::dict& given);
/// Throws ConfigError for a key that is not in `known`.
void refuse_unknown_options(const std::string& consumer, std::span<const char* const> known,
                            const py::dict& given);
[[noreturn]] void refuse_missing_option(const std::string& consumer, const char* key);

/// Reads all values that Python gave for `consumer`, a name for messages. Throws ConfigError for a
/// key that is not in the table, for a required key that is missing, and for a value of the wrong
/// type.
template <class Options>
[[nodiscard]] Options read_options(const std::string& consumer,
                                   std::span<const OptionKey<Options>> keys,
                                   const py::dict& given) {
  std::vector<const char*> known;
  for (const OptionKey<Options>& key : keys) known.push_back(key.name);
  refuse_unknown_options(consumer, known, given);
  Options options;
  for (const OptionKey<Options>& key : keys) {
    if (const auto value = find_option(consumer, key.name, given)) {
      key.set(options, *value);
    } else if (key.presence == Presence::kRequired) {
      refuse_missing_option(consumer, key.name);
    }
  }
  return options;
}

}  // namespace kvferry::python
