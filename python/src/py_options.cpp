// SPDX-License-Identifier: Apache-2.0
#include "py_options.hpp"

#include "kvferry/base/error.hpp"

#include <algorithm>
#include <sstream>

namespace kvferry::python {
namespace {

/// Most characters of a value in a message.
constexpr std::size_t kMostShown = 300;

/// Writes a value in one line; if it cannot be written, its type.
std::string shown(const py::object& value) {
  const auto text = py::reinterpret_steal<py::object>(PyObject_ASCII(value.ptr()));
  if (!text) {
    PyErr_Clear();
    return std::string("a ") + Py_TYPE(value.ptr())->tp_name;
  }
  auto out = py::cast<std::string>(text);
  if (out.size() > kMostShown) out.replace(kMostShown, std::string::npos, "...");
  return out;
}

}  // namespace

void OptionValue::refuse(const std::string& expected) const {
  throw ConfigError(name_ + " is " + shown(value_) + "; expected " + expected);
}

bool OptionValue::flag() const {
  if (!PyBool_Check(value_.ptr())) refuse("True or False");
  return value_.ptr() == Py_True;
}

std::uint64_t OptionValue::whole_number(std::uint64_t most) const {
  const auto refuse_it = [&] { refuse("a whole number from 0 to " + std::to_string(most)); };
  if (PyBool_Check(value_.ptr()) || !PyIndex_Check(value_.ptr())) refuse_it();
  const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(value_.ptr()));
  const std::uint64_t number = index ? PyLong_AsUnsignedLongLong(index.ptr()) : 0;
  if (PyErr_Occurred() != nullptr || number > most) {
    PyErr_Clear();
    refuse_it();
  }
  return number;
}

double OptionValue::number() const {
  const bool is_number = PyFloat_Check(value_.ptr()) || PyIndex_Check(value_.ptr());
  if (PyBool_Check(value_.ptr()) || !is_number) refuse("a number");
  const double number = PyFloat_AsDouble(value_.ptr());
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    refuse("a number that a double can hold");
  }
  return number;
}

bool OptionValue::is_text() const { return PyUnicode_Check(value_.ptr()) != 0; }

std::string OptionValue::text() const {
  if (!is_text()) refuse("a text");
  Py_ssize_t size = 0;
  const char* const chars = PyUnicode_AsUTF8AndSize(value_.ptr(), &size);
  if (chars == nullptr) {
    PyErr_Clear();
    refuse("a text that UTF-8 can write");
  }
  return {chars, static_cast<std::size_t>(size)};
}

std::chrono::nanoseconds OptionValue::duration(double units_per_second, const char* unit) const {
  const double value = number();
  const double most = kMaxSeconds * units_per_second;
  // This form also refuses NaN.
  if (!(value >= 0 && value <= most)) {
    std::ostringstream expected;
    expected << "a number of " << unit << " from 0 to " << most;
    refuse(expected.str());
  }
  constexpr double kNanosecondsPerSecond = 1e9;
  return std::chrono::nanoseconds(
      static_cast<std::int64_t>(value / units_per_second * kNanosecondsPerSecond));
}

std::chrono::nanoseconds OptionValue::seconds() const { return duration(1, "seconds"); }

std::chrono::nanoseconds OptionValue::microseconds() const { return duration(1e6, "microseconds"); }

py::dict OptionValue::mapping() const {
  if (!PyDict_Check(value_.ptr())) refuse("a dict");
  return py::reinterpret_borrow<py::dict>(value_);
}

std::vector<OptionValue> OptionValue::elements(std::optional<std::size_t> size) const {
  const bool is_sequence = PyList_Check(value_.ptr()) || PyTuple_Check(value_.ptr());
  if (!is_sequence || (size && *size != py::len(value_))) {
    refuse(size ? "a tuple of " + std::to_string(*size) : "a list");
  }
  std::vector<OptionValue> out;
  for (const py::handle element : value_) {
    out.emplace_back(name_ + "[" + std::to_string(out.size()) + "]",
                     py::reinterpret_borrow<py::object>(element));
  }
  return out;
}

std::optional<OptionValue> find_option(const std::string& consumer, const char* key,
                                       const py::dict& given) {
  if (!given.contains(key)) return std::nullopt;
  py::object value = given[key];
  if (value.is_none()) return std::nullopt;
  return OptionValue(consumer + ": " + key, std::move(value));
}

void refuse_unknown_options(const std::string& consumer, std::span<const char* const> known,
                            const py::dict& given) {
  for (const auto& [name, _] : given) {
    const bool is_known = PyUnicode_Check(name.ptr()) &&
                          std::any_of(known.begin(), known.end(), [&name = name](const char* key) {
                            return PyUnicode_CompareWithASCIIString(name.ptr(), key) == 0;
                          });
    if (is_known) continue;
    std::string text = consumer + ": unknown key " +
                       shown(py::reinterpret_borrow<py::object>(name)) + "; expected ";
    const char* separator = "";
    for (const char* key : known) {
      text += separator;
      text += key;
      separator = ", ";
    }
    throw ConfigError(text);
  }
}

void refuse_missing_option(const std::string& consumer, const char* key) {
  throw ConfigError(consumer + ": " + key + " is missing; expected a value, for it has no default");
}

}  // namespace kvferry::python
