#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Puts CUDA's compiler from pip's wheels (0.1 GB) into build/nvcc if no toolkit is installed, so that the CUDA kernels
# are compiled on every machine. If the wheels are not available, a line says so, and the build goes on without the
# kernels.
set -euo pipefail
. "$(dirname "$0")/step.sh"
cd "$KVFERRY_ROOT"

# The compiler, its back end and the headers that it includes by itself, all of one CUDA version.
packages=(nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96)
dir=build/nvcc
nvcc=$dir/nvidia/cu13/bin/nvcc
read -ra pip_args <<<"${KVFERRY_PIP_ARGS:-}"

# This searches in the same way as cmake/KvferryKernels.cmake. With KVFERRY_NVCC_FROM_PIP=1 it ignores a toolkit.
if [ -z "${KVFERRY_NVCC_FROM_PIP:-}" ]; then
  for toolkit in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda; do
    if [ -n "$toolkit" ] && [ -x "$toolkit/bin/nvcc" ]; then exit 0; fi
  done
  if command -v nvcc >/dev/null 2>&1; then exit 0; fi
fi
is_stamped "$dir/stamp" "${packages[*]}" && [ -x "$nvcc" ] && exit 0

install() {
  rm -rf "$dir"
  "$(tools/find_python.sh)" -m venv "$dir/pip"
  "$dir/pip/bin/python" -m pip --disable-pip-version-check install --no-deps --only-binary :all: \
    "${pip_args[@]}" --target "$dir" "${packages[@]}"
  rm -rf "$dir/pip"
  "$nvcc" --version
}
if step nvcc-install "install nvcc 13.0 from pip into $dir" install; then
  stamp "$dir/stamp" "${packages[*]}"
else
  rm -rf "$dir"
  say "NO nvcc: no toolkit here and none from pip. The CUDA kernels are NOT compiled, their tests are skipped."
fi
