#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes build/lmcache/venv with LMCache, what it needs on a machine without a GPU, and kvferry's wheel. LMCache's source
# distribution, which has its conformance tests, lies beside it. This is an environment of its own because LMCache and
# vLLM pin different versions of numpy.
#   setup_lmcache.sh [environment]
# "environment" leaves out kvferry's wheel, which need not be built then.
set -euo pipefail
. "$(dirname "$0")/step.sh"
. "$(dirname "$0")/engine.sh"
cd "$KVFERRY_ROOT"

cache=lmcache==0.5.6
home=build/lmcache
python=$KVFERRY_ROOT/$home/venv/bin/python
pip=("$python" -m pip --disable-pip-version-check)
# As in setup_venv.sh.
install=("${pip[@]}" install --no-compile)
read -ra pip_args <<<"${KVFERRY_PIP_ARGS:-}"

base_python=$(tools/find_python.sh)
made_by="$("$base_python" --version) $cache $torch $(content_hash tools/requirements-lmcache.txt)"

fetch_tests() {
  NO_NATIVE_EXT=1 NO_GPU_EXT=1 "${pip[@]}" download --no-deps --no-binary :all: --no-build-isolation \
    "${pip_args[@]}" -d "$home/sdist" "$cache"
  tar -xzf "$home"/sdist/*.tar.gz -C "$home/sdist" --strip-components=1
  rm -f "$home"/sdist/*.tar.gz
}

if ! is_stamped "$home/stamp" "$made_by"; then
  rm -rf "$home"
  step lmcache-venv "make $home/venv" "$base_python" -m venv "$home/venv"
  step lmcache-torch "install $torch for LMCache" "${install[@]}" "${pip_args[@]}" "$torch"
  step lmcache-requirements "install what $cache needs (1 to 3 min)" \
    "${install[@]}" "${pip_args[@]}" -r tools/requirements-lmcache.txt
  step lmcache-install "install $cache" "${install[@]}" --no-deps "${pip_args[@]}" "$cache"
  step lmcache-sdist "fetch its tests" fetch_tests
  stamp "$home/stamp" "$made_by"
fi
[ "${1-}" = environment ] && exit 0
wheel=$(content_hash dist)
if ! is_stamped "$home/wheel" "$wheel"; then
  step lmcache-wheel "install kvferry's wheel beside LMCache" "${pip[@]}" install --no-deps --force-reinstall dist/kvferry-*.whl
  stamp "$home/wheel" "$wheel"
fi
