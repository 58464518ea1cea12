#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Unpacks what carry_vllm.py has collected, and builds kvferry's extension for this machine's python3 and GPU (a minute
# on 16 processors):  . tests/gpu/engine/prepare.sh CARRIED SITE
# It is sourced: it sets the search paths for tests/gpu/engine/engines.py.
carried=$(realpath "$1") site=$(realpath -m "$2")
repository=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../../..")
export PYTHONPATH=$site LD_LIBRARY_PATH=$site/libs:${LD_LIBRARY_PATH:-}
export HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1 VLLM_NO_USAGE_STATS=1 VLLM_USE_FLASHINFER_SAMPLER=0 KVFERRY_DUMPS=$site/dumps

kvferry_prepare() (
  set -eu
  mkdir -p "$site/libs"
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site" "$carried"/wheels/*.whl
  tar xJf "$carried/vllm.tar.xz" -C "$site"
  for part in _C_stable_libtorch vllm_flash_attn/_vllm_fa3_C; do
    xz -dc "$carried/$(basename $part).abi3.so.xz" >"$site/vllm/$part.abi3.so"
  done
  cp -L "$carried"/share/*/lib/*.so* "$site/libs/"
  capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
  cmake -S "$repository" -B "$site/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DKVFERRY_BUILD_PYTHON=ON \
    -DKVFERRY_BUILD_TESTS=OFF -DKVFERRY_BUILD_BENCH=OFF -DKVFERRY_CUDA=ON -DKVFERRY_HIP=OFF \
    "-DKVFERRY_CUDA_ARCHITECTURES=$capability" "-DCMAKE_PREFIX_PATH=$carried;$carried/pybind11" \
    "-DPython_EXECUTABLE=$(command -v python3)" >"$site/configure.log"
  cmake --build "$site/build" --target _core >"$site/build.log"
  cmake --install "$site/build" --component python --prefix "$site" >"$site/install.log"
  cp -r "$repository"/python/kvferry/. "$site/kvferry/"
  # What an installed wheel has: the version that vLLM's plug-ins and our own messages read.
  mkdir -p "$site/kvferry-0.dist-info"
  printf 'Metadata-Version: 2.1\nName: kvferry\nVersion: 0\n' >"$site/kvferry-0.dist-info/METADATA"
)
[ -e "$site/kvferry" ] || kvferry_prepare
