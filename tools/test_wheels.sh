#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tries the wheels of dist/wheels, each in a bare root below build/roots that has Debian and a Python, and nothing else:
# no compiler, no oneTBB, no hwloc. libstdc++ is there, which every manylinux wheel may ask of the system. Needs root for
# chroot. The packages that the wheels depend on are downloaded outside, so the roots need no network. mmdebstrap makes
# the roots, once for each release.
set -euo pipefail
. "$(dirname "$0")/step.sh"
. "$(dirname "$0")/debian13.sh"
cd "$KVFERRY_ROOT"

if [ "$(id -u)" -ne 0 ]; then
  say "make test-wheels needs root, because it uses chroot" >&2
  exit 1
fi
read -ra pip_args <<<"${KVFERRY_PIP_ARGS:-}"
roots=$KVFERRY_ROOT/build/roots
# What the standard library of a Python links that was not built by Debian.
libraries=libstdc++6,libbz2-1.0,libffi8,liblzma5,libreadline8,libsqlite3-0,libssl3,zlib1g

make_root() { # make_root NAME SUITE PACKAGES
  rm -rf "${roots:?}/$1" "$roots/$1.partial"
  mkdir -p "$roots"
  mmdebstrap --mode=root --variant=essential --include="$3" "$2" "$roots/$1.partial" "$(debian_mirror)"
  mv "$roots/$1.partial" "$roots/$1"
}

# The wheel, and those that it depends on, for its Python.
fetch() { # fetch WHEEL TAG FOLDER
  rm -rf "$3"
  mkdir -p "$3"
  "build/wheels/$2/venv/bin/python" -m pip --disable-pip-version-check download "${pip_args[@]}" -d "$3" "$1"
}

try() { # try ROOT PYTHON FOLDER
  rm -rf "${1:?}/wheels" "$1/kvferry"
  cp -r "$3" "$1/wheels"
  cp tests/package/try_wheel.sh "$1/wheels"
  # /proc and /sys are mounted in a mount namespace that ends with the command: kvferry reads memory and nodes there.
  env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/ LANG=C.UTF-8 unshare --mount bash -ec \
    'mount -t proc proc "$0/proc"; mount --rbind /sys "$0/sys"; exec chroot "$0" bash /wheels/try_wheel.sh "$1"' "$1" "$2"
}

shopt -s nullglob
wheels=(dist/wheels/*.whl)
if [ ${#wheels[@]} -eq 0 ]; then
  say "no wheel in dist/wheels: run make wheels first" >&2
  exit 1
fi
num_passed=0
for wheel in "${wheels[@]}"; do
  tag=$(sed -E 's/.*-(cp[0-9]+)-.*/\1/' <<<"$wheel")
  python=python3 packages=python3,python3-venv,libstdc++6
  case $tag in
    cp311) suite=bookworm ;;
    cp313) suite=trixie ;;
    *) # Debian has none: the Python that built the wheel is copied into the root.
      suite=bookworm packages=$libraries
      prefix=$("build/wheels/$tag/venv/bin/python" -c 'import sys; print(sys.base_prefix)')
      python=$("build/wheels/$tag/venv/bin/python" -c 'import sys; print(sys.base_prefix + "/bin/python3")')
      ;;
  esac
  root=$roots/$suite-$tag
  [ -d "$root" ] || step "root-$tag" "make a bare root of Debian $suite for $tag" make_root "$suite-$tag" "$suite" "$packages"
  if [ "$python" != python3 ] && [ ! -d "$root$prefix" ]; then
    mkdir -p "$root$prefix"
    cp -r "$prefix/." "$root$prefix"
  fi
  step "fetch-$tag" "download what the wheel for $tag depends on" fetch "$wheel" "$tag" "build/wheels/$tag/house"
  if step "try-$tag" "install the wheel for $tag there and use it" try "$root" "$python" "build/wheels/$tag/house"; then
    num_passed=$((num_passed + 1))
  fi
done
echo "$num_passed passed, $((${#wheels[@]} - num_passed)) failed"
[ "$num_passed" -eq ${#wheels[@]} ]
