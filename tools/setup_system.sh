#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# setup_system.sh [build|bench|wheels|test|docs]: installs missing system packages with apt.
#   build  what `make demo` needs: compiler, CMake, Ninja, hwloc, oneTBB, Python headers
#   bench  also the libraries of kvferry-bench and kvferry-lab
#   wheels build and bench, mmdebstrap, which makes the bare roots of `make test-wheels`, and hipcc if apt has it
#   test   build and bench, and GoogleTest, clang with its sanitizers, and spin, for `make test`; also hipcc and lld if apt
#          has them (without hipcc the HIP kernels are left out; without lld the tests take longer to link)
#   docs   what `make docs` needs, and none of that
# A tool that was installed by other means than apt is used as it is.
set -euo pipefail
. "$(dirname "$0")/step.sh"
scope=${1:-test}

has() { command -v "$1" >/dev/null 2>&1; }
has_python() { "$KVFERRY_ROOT/tools/find_python.sh" >/dev/null 2>&1; }
python_has() { "$("$KVFERRY_ROOT/tools/find_python.sh")" -c "$1" >/dev/null 2>&1; }
has_fuzzer() {
  local compiler
  for compiler in clang++-14 clang++-{20..15} clang++; do
    has "$compiler" || continue
    echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
      "$compiler" -x c++ -fsanitize=fuzzer,address - -o /dev/null >/dev/null 2>&1 && return
  done
  return 1
}
has_header() { echo "#include <$1>" | g++ -E -x c++ - >/dev/null 2>&1; }

missing=()
want() { # want PACKAGE CHECK...: PACKAGE is missing unless CHECK succeeds
  local package=$1
  shift
  "$@" || missing+=("$package")
}

wished=()
wish() { # wish PACKAGE CHECK...: as want, but the build can do without
  local package=$1
  shift
  "$@" || wished+=("$package")
}

find_missing() {
  missing=()
  wished=()
  if [ "$scope" = docs ]; then
    want git has git
    want doxygen has doxygen
    return
  fi
  want g++ has g++
  want make has make
  want cmake has cmake
  want ninja-build has ninja
  want git has git
  want libhwloc-dev has_header hwloc.h
  want libtbb-dev has_header oneapi/tbb/task_arena.h
  if has_python; then
    want python3-venv python_has 'import venv, ensurepip'
    want python3-dev python_has \
      'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")'
  else
    missing+=(python3 python3-venv python3-dev)
  fi
  if [ "$scope" != build ]; then
    want libcli11-dev has_header CLI/CLI.hpp
    want libfmt-dev has_header fmt/format.h
    want nlohmann-json3-dev has_header nlohmann/json.hpp
  fi
  if [ "$scope" = wheels ]; then
    want mmdebstrap has mmdebstrap
    wish hipcc has hipcc
  fi
  # The wheels hold no kvferry-lab.
  if [ "$scope" = bench ] || [ "$scope" = test ]; then
    want libsimdjson-dev has_header simdjson.h
  fi
  if [ "$scope" = test ]; then
    want libgtest-dev has_header gtest/gtest.h
    want clang eval 'has clang++-14 || has clang++'
    want clang-tidy eval 'has clang-tidy-14 || has clang-tidy'
    want spin has spin
    want libclang-rt has_fuzzer
    wish hipcc has hipcc
    wish lld has ld.lld
  fi
}

# clang 14 is the tested version. A distribution without it installs its own version.
versioned() {
  local number=14
  case $1 in
    clang | clang-tidy)
      if apt-cache show "$1-14" >/dev/null 2>&1; then echo "$1-14"; else echo "$1"; fi
      ;;
    libclang-rt)
      apt-cache show clang-14 >/dev/null 2>&1 ||
        number=$(apt-cache depends clang | sed -n 's/.*Depends: clang-\([0-9]*\)$/\1/p')
      echo "libclang-rt-$number-dev"
      ;;
    *) echo "$1" ;;
  esac
}

check_versions() {
  local cmake gcc
  cmake=$(cmake --version | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p')
  gcc=$(g++ -dumpfullversion -dumpversion)
  if [ "$(printf '%s\n3.25\n' "$cmake" | sort -V | head -n 1)" != 3.25 ]; then
    say "cmake is $cmake; kvferry needs 3.25 or newer (Debian 12, Ubuntu 24.04 or later have it)" >&2
    return 1
  fi
  if [ "${gcc%%.*}" -lt 12 ]; then
    say "g++ is $gcc; kvferry needs 12 or newer (Debian 12, Ubuntu 24.04 or later have it)" >&2
    return 1
  fi
  "$KVFERRY_ROOT/tools/find_python.sh" >/dev/null
}

# Whether apt may have an optional package: it knows the package, or it has no lists yet.
can_grant() {
  has apt-get && { [ "$(id -u)" -eq 0 ] || has sudo; } || return 1
  apt-cache show "$1" >/dev/null 2>&1 || ! compgen -G '/var/lib/apt/lists/*Packages*' >/dev/null
}

find_missing
granted=()
for package in ${wished[@]+"${wished[@]}"}; do
  if can_grant "$package"; then granted+=("$package"); fi
done
if [ $((${#missing[@]} + ${#granted[@]})) -gt 0 ]; then
  if ! has apt-get; then
    say "missing: ${missing[*]} (Debian's names). This system has no apt: install them by hand," \
      "then run the same command again." >&2
    exit 1
  fi
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! has sudo; then
      say "missing: ${missing[*]}. You are not root and there is no sudo. As root, run:" \
        "apt-get install ${missing[*]}" >&2
      exit 1
    fi
    as_root=(sudo)
    sudo -v
  fi
  # Another process may hold dpkg's lock. Wait for it.
  apt=(${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300)
  step apt-update "apt-get update" "${apt[@]}" update
  packages=()
  for package in ${missing[@]+"${missing[@]}"}; do packages+=("$(versioned "$package")"); done
  if [ ${#packages[@]} -gt 0 ]; then
    step apt-install "apt-get install ${packages[*]}" \
      "${apt[@]}" install -y --no-install-recommends "${packages[@]}"
  fi
  for package in ${wished[@]+"${wished[@]}"}; do
    if apt-cache show "$package" >/dev/null 2>&1; then
      step "apt-$package" "apt-get install $package" \
        "${apt[@]}" install -y --no-install-recommends "$package" || true
    fi
  done
  find_missing
  if [ ${#missing[@]} -gt 0 ]; then
    say "still missing after the installation: ${missing[*]}" >&2
    exit 1
  fi
fi
if [ ${#wished[@]} -gt 0 ]; then
  say "not to be had from apt: ${wished[*]}. Without hipcc the HIP kernels are NOT compiled; their tests are skipped."
fi
[ "$scope" = docs ] || check_versions
