# SPDX-License-Identifier: Apache-2.0
"""The check of how large classes and files are finds what is too large, and counts what it says."""

import sys

import pytest
from documents import ROOT, text_of, tracked

sys.path.insert(0, str(ROOT / "tools"))
import sizes

HEADER = """
#define MANY(x) \\
  struct Macro { void x(); }
namespace kvferry {
enum class Kind : std::uint8_t { kOne, kTwo };
using Call = void (*)(int);
template <class T>
class Owner final : public Base<T>, private Other {
 public:
  struct Options {
    std::function<bool(int)> hook = {};
    std::uint32_t size = bytes(4);
    [[nodiscard]] bool empty() const { return size == 0; }
  };
  explicit Owner(std::vector<int> values = {}) : values_{values}, text_("};") {}
  ~Owner();
  Owner& operator=(const Owner&) = delete;
  // void not_this();
  [[nodiscard]] std::map<int, std::vector<int>> one(std::function<void(int)> with) const;
  [[nodiscard]] int two() const KVFERRY_REQUIRES(mutex_) { return one({}).at('}'); }
  int two(int of);
  template <class F>
  auto three(F&& f) -> decltype(f()) {
    struct Local { void hidden(); };
    return f();
  }
  virtual void four() = 0;
  using Base<T>::five;
  static constexpr int kNumber = number(1 << 3);
  friend void not_that(Owner& owner);

 protected:
  void not_public();

 private:
  int state_ KVFERRY_GUARDED_BY(mutex_) = 0;
  Result (*call_)(int) = nullptr;
  void nor_private();
};
struct Plain {
  void six(), *pointer;
  bool operator==(const Plain&) const = default;
};
}  // namespace kvferry
"""


def test_public_functions_are_counted_by_name() -> None:
    assert sizes.public_functions(HEADER) == [
        ("Owner", {"one", "two", "three", "four", "five"}),
        ("Options", {"empty"}),
        ("Plain", {"six"}),
    ]


@pytest.mark.parametrize(("count", "complaints"), [(30, []), (31, ["a.hpp: Wide has 31 public functions; at most 30"])])
def test_a_class_of_too_many_functions_is_found(count: int, complaints: list[str]) -> None:
    functions = "\n".join(f"  int f{i}() const;\n  void f{i}(int to);" for i in range(count))
    header = f"class Wide {{\n public:\n  Wide();\n{functions}\n private:\n  void hidden();\n}};\n"
    assert list(sizes.large_classes("a.hpp", header)) == complaints


def test_a_file_of_too_many_lines_is_found() -> None:
    assert list(sizes.large_file("a.cpp", "\n" * 400)) == []
    assert list(sizes.large_file("a.cpp", "\n" * 401)) == ["a.cpp: 401 lines; at most 400"]


def test_every_class_of_a_header_is_seen() -> None:
    header = "cpu_tier/slots/include/kvferry/cpu_tier/slots/tier.hpp"
    assert header in tracked()
    of_tier = dict(sizes.public_functions(text_of(header)))["Tier"]
    assert {"offer", "reserve", "commit", "lookup_prefix", "lease", "forget_all", "check_invariants"} <= of_tier
    assert not {"Tier", "make_room", "give_back"} & of_tier
