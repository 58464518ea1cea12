#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Unpacks GCC 14 and the libraries of Debian 13 into build/gcc14, beside the system. Their own loader runs them. So the
# checks include a newer compiler on Debian 12, which has none. This needs neither root, nor a chroot, nor a mount.
# build/gcc14/toolchain.cmake is for CMake. If GCC 14 is not available, a line says so, and GCC 12 builds everything.
set -euo pipefail
. "$(dirname "$0")/step.sh"
. "$(dirname "$0")/debian13.sh"
cd "$KVFERRY_ROOT"

packages=(g++-14 libtbb-dev libhwloc-dev libfmt-dev nlohmann-json3-dev libsimdjson-dev libcli11-dev libgtest-dev)
dir=$KVFERRY_ROOT/build/gcc14
root=$dir/root
# The stamp includes the folder, because the compiler's scripts name it.
wanted="trixie ${packages[*]} $dir"

# A newer compiler of the system itself is the better check.
if [ "$(g++ -dumpversion | cut -d. -f1)" -ge 13 ]; then exit 0; fi
is_stamped "$dir/stamp" "$wanted" && exit 0

# Run apt with lists, archives and a status of its own, so that it sees no package as installed.
apt_of_debian13() { APT_CONFIG=$dir/apt/apt.conf apt-get "$@"; }

fetch() {
  configure_debian13 "$dir" main bookworm || return 1
  apt_of_debian13 update || return 1
  apt_of_debian13 install -y --download-only --no-install-recommends "${packages[@]}"
}

unpack() {
  local folder package
  rm -rf "$root"
  for folder in bin sbin lib lib64; do
    mkdir -p "$root/usr/$folder"
    ln -s "usr/$folder" "$root/$folder"
  done
  for package in "$dir"/apt/cache/archives/*.deb; do
    case ${package##*/} in perl* | libperl* | auto* | m4_*) continue ;; esac
    dpkg-deb -x "$package" "$root" || return 1
  done
}

# The loader of Debian 13 runs each program of the compiler, because ours does not know its C library.
wrap() {
  local name=$1 program=$2
  shift 2
  printf '#!/bin/sh\nexec %s --library-path %s %s %s "$@"\n' "$root/lib64/ld-linux-x86-64.so.2" \
    "$root/usr/lib/x86_64-linux-gnu" "$root/usr/$program" "$*" >"$dir/bin/$name"
  chmod +x "$dir/bin/$name"
}

make_toolchain() {
  mkdir -p "$dir/bin"
  wrap cc1plus libexec/gcc/x86_64-linux-gnu/14/cc1plus
  wrap collect2 libexec/gcc/x86_64-linux-gnu/14/collect2
  wrap as bin/x86_64-linux-gnu-as
  wrap ld bin/x86_64-linux-gnu-ld
  wrap g++-14 bin/x86_64-linux-gnu-g++-14 "-B$dir/bin/"
  cat >"$dir/toolchain.cmake" <<EOF
# SPDX-License-Identifier: Apache-2.0
set(CMAKE_SYSROOT $root)
set(CMAKE_CXX_COMPILER $dir/bin/g++-14)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
# The programs that are built run with the C library that they were built with. This needs RPATH, not RUNPATH: RPATH
# also holds for the libraries of libraries.
set(CMAKE_EXE_LINKER_FLAGS_INIT "-Wl,--dynamic-linker=$root/lib64/ld-linux-x86-64.so.2 \
-Wl,-rpath,$root/usr/lib/x86_64-linux-gnu -Wl,--disable-new-dtags")
EOF
  echo 'int main() {}' | "$dir/bin/g++-14" --sysroot="$root" -x c++ - -o "$dir/empty"
}

install() { fetch && unpack && make_toolchain; }
if step gcc14-install "unpack GCC 14 of Debian 13 into build/gcc14" install; then
  stamp "$dir/stamp" "$wanted"
else
  rm -rf "$root" "$dir/bin" "$dir/toolchain.cmake" "$dir/stamp"
  say "NO GCC 13 or newer: not installed, and Debian 13's cannot be fetched. GCC 12 builds everything."
fi
