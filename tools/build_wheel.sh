#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# build_wheel.sh [engine]: builds the wheel into dist/ and installs it into .venv, if one of its sources has changed.
#   engine  what runs an engine is enough: without kvferry-bench, which takes a third of the time to compile
set -euo pipefail
. "$(dirname "$0")/step.sh"
cd "$KVFERRY_ROOT"
. tools/compiler_cache.sh
scope=${1:-all}

python=$KVFERRY_ROOT/.venv/bin/python
installed=.venv/.kvferry/wheel
sources=$(content_hash CMakeLists.txt cmake pyproject.toml README.md LICENSE \
  python/{CMakeLists.txt,exports.map,src,kvferry} {base,recorder,gpu,lmcache,transfer}/{CMakeLists.txt,include,src} {cpu_tier,connector}/CMakeLists.txt \
  {cpu_tier,connector}/*/{CMakeLists.txt,include,src} bench/{CMakeLists.txt,src})
# The compilers that can compile the kernels, and the libraries of kvferry-bench.
compilers=$(ls -d /usr/include/{CLI,fmt,nlohmann} 2>/dev/null; command -v nvcc hipcc /usr/local/cuda/bin/nvcc build/nvcc/nvidia/cu13/bin/nvcc || true)
sources+=" ${compilers//$'\n'/ }"

if is_stamped "$installed" "$sources"; then exit 0; fi
options=()
if [ "$scope" = engine ]; then
  sources+=" engine"
  if is_stamped "$installed" "$sources"; then exit 0; fi
  options=(-C cmake.define.KVFERRY_BUILD_BENCH=OFF)
fi

build() {
  rm -rf dist build/linked-wheel
  "$python" -m pip --disable-pip-version-check wheel -v --no-deps --no-build-isolation "${options[@]}" \
    -w build/linked-wheel .
}
# The wheel holds its own copies of oneTBB and hwloc, under names of their own. So it runs where they are not installed,
# and beside the copies of other packages.
bundle() {
  PATH=$KVFERRY_ROOT/.venv/bin:$PATH "$python" -m auditwheel repair -w dist build/linked-wheel/kvferry-*.whl
}
install() {
  "$python" -m pip --disable-pip-version-check install --no-deps --force-reinstall dist/kvferry-*.whl
}
# Ninja's own default is two jobs more than there are processors.
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}
step wheel-build "build the kvferry wheel" build
step wheel-bundle "put oneTBB and hwloc into it" bundle
step wheel-install "install it into .venv" install
stamp "$installed" "$sources"
