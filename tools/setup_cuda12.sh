#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Puts the compiler of CUDA 12.4 into build/cuda12, for wheels that every driver from 550 on loads. The compiler comes
# from Debian 13's package nvidia-cuda-toolkit (non-free), the headers from pip's wheels. Nothing is installed into the
# system. A toolkit of CUDA 12.4 to 12.9 below $CUDA_HOME is used instead, and then this script does nothing.
# `setup_cuda12.sh --print` prints the path of nvcc.
set -euo pipefail
. "$(dirname "$0")/step.sh"
. "$(dirname "$0")/debian13.sh"
cd "$KVFERRY_ROOT"

dir=$KVFERRY_ROOT/build/cuda12
compiler=nvidia-cuda-toolkit=12.4.131~12.4.1-2
headers=(nvidia-cuda-nvcc-cu12==12.4.131 nvidia-cuda-runtime-cu12==12.4.127)
read -ra pip_args <<<"${KVFERRY_PIP_ARGS:-}"

is_cuda12() { "$1" --version 2>/dev/null | grep -qE 'release 12\.[4-9]'; }

nvcc=$dir/bin/nvcc
if [ -n "${CUDA_HOME:-}" ] && is_cuda12 "$CUDA_HOME/bin/nvcc"; then nvcc=$CUDA_HOME/bin/nvcc; fi
if [ "${1:-}" = --print ]; then
  echo "$nvcc"
  exit 0
fi
if [ "$nvcc" != "$dir/bin/nvcc" ]; then exit 0; fi
wanted="$compiler ${headers[*]}"
is_stamped "$dir/stamp" "$wanted" && is_cuda12 "$nvcc" && exit 0

# apt with lists and a status of its own: the packages of Debian 13 stay out of the system's configuration.
fetch() {
  rm -rf "$dir"
  configure_debian13 "$dir" non-free || return 1
  APT_CONFIG=$dir/apt/apt.conf apt-get update
  cd "$dir"
  APT_CONFIG=$dir/apt/apt.conf apt-get download "$compiler"
}

# NVIDIA's layout: bin, nvvm, include. The package divides it over several folders.
unpack() {
  local usr=$dir/package/usr
  dpkg-deb -x "$dir"/nvidia-cuda-toolkit_*.deb "$dir/package"
  mkdir -p "$dir/bin" "$dir/nvvm/bin" "$dir/include"
  mv "$usr"/bin/{ptxas,fatbinary,cudafe++,nvlink} "$usr/lib/nvidia-cuda-toolkit/bin/nvcc" "$dir/bin"
  mv "$usr/lib/nvidia-cuda-toolkit/bin/cicc" "$dir/nvvm/bin"
  mv "$usr/lib/nvidia-cuda-toolkit/libdevice" "$dir/nvvm"
  "$(tools/find_python.sh)" -m venv "$dir/pip"
  "$dir/pip/bin/python" -m pip --disable-pip-version-check install --no-deps --only-binary :all: \
    "${pip_args[@]}" --target "$dir/wheels" "${headers[@]}"
  cp -r "$dir"/wheels/nvidia/cuda_{nvcc,runtime}/include/. "$dir/include"
  printf '%s\n' 'TOP = $(_HERE_)/..' 'CICC_PATH = $(TOP)/nvvm/bin' 'NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice' \
    'PATH += $(CICC_PATH):$(_HERE_):' 'INCLUDES += "-I$(TOP)/include"' >"$dir/bin/nvcc.profile"
  rm -rf "$dir"/{apt,package,pip,wheels} "$dir"/*.deb
  is_cuda12 "$nvcc"
}

step cuda12-download "download the compiler of CUDA 12.4 (Debian 13's package, 90 MB)" fetch
step cuda12-unpack "unpack it into build/cuda12" unpack
stamp "$dir/stamp" "$wanted"
