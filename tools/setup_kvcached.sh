#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs kvcached, and what it needs in addition to .venv, into build/kvcached/site. It is compiled against a stand-in
# for CUDA's virtual memory calls (tests/fakes/fake_vmm). Put that folder before .venv on the path, together with
# build/vllm030/site, the release that kvcached works with.
set -euo pipefail
. "$(dirname "$0")/step.sh"
cd "$KVFERRY_ROOT"

allocator=kvcached==0.1.6
needs=(posix_ipc==1.3.2 wrapt==1.17.3)
home=$KVFERRY_ROOT/build/kvcached
python=$KVFERRY_ROOT/.venv/bin/python
pip=("$python" -m pip --disable-pip-version-check)
read -ra pip_args <<<"${KVFERRY_PIP_ARGS:-}"
made_by="$allocator ${needs[*]} $(content_hash tools/setup_kvcached.sh tests/fakes/fake_vmm .venv/.kvferry/environment)"
is_stamped "$home/stamp" "$made_by" && exit 0

cuda=
for toolkit in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda build/nvcc/nvidia/cu13; do
  if [ -f "$toolkit/include/cuda.h" ] && [ -f "$toolkit/include/cuda_runtime.h" ]; then cuda=$toolkit && break; fi
done
if [ -z "$cuda" ]; then
  say "setup_kvcached.sh: no CUDA headers (cuda.h, cuda_runtime.h); set CUDA_HOME, or see tools/setup_nvcc.sh" >&2
  exit 1
fi

# pip asks the package's build for its metadata, and the build demands a PyTorch for CUDA before it answers.
fetch() {
  mkdir -p "$home/shim"
  cat >"$home/shim/sitecustomize.py" <<PYTHON
import torch.utils.cpp_extension
import torch.version

torch.version.cuda = "13.0"
torch.utils.cpp_extension.CUDA_HOME = "$cuda"
PYTHON
  PYTHONPATH=$home/shim "${pip[@]}" download --no-deps --no-binary :all: --no-build-isolation "${pip_args[@]}" \
    -d "$home" "$allocator"
  mkdir -p "$home/source"
  tar -xzf "$home"/kvcached-*.tar.gz -C "$home/source" --strip-components=1
  rm -rf "$home"/kvcached-*.tar.gz "$home/shim"
  "${pip[@]}" install --no-deps "${pip_args[@]}" --target "$home/site" "${needs[@]}"
  cp -r "$home/source/kvcached" "$home/site/"
}

compile() {
  local torch sources
  torch=$("$python" -c 'import torch; print(torch.__path__[0])')
  # The tensors are in this memory. PyTorch without CUDA takes it for the CPU's.
  sed -i 's/strides, dev_, dtype_);/strides, torch::stable::Device(torch::headeronly::kCPU), dtype_);/' \
    "$home/source/csrc/ftensor.cpp"
  grep -q 'headeronly::kCPU), dtype_' "$home/source/csrc/ftensor.cpp"
  g++ -shared -fPIC -O2 -std=c++20 -Wall -isystem "$cuda/include" tests/fakes/fake_vmm/fake_vmm.cpp \
    -o "$home/site/kvcached/libfake_vmm.so"
  sources=("$home"/source/csrc/*.cpp)
  g++ -shared -fPIC -O1 -std=c++17 -DNDEBUG -DKVCACHED_USE_CUDA -DTORCH_STABLE_ONLY \
    -DTORCH_TARGET_VERSION=0x020a000000000000 -DTORCH_EXTENSION_NAME=_C \
    -I"$home/source/csrc/inc" -isystem "$cuda/include" -isystem "$torch/include" \
    -isystem "$torch/include/torch/csrc/api/include" \
    -isystem "$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')" \
    "${sources[@]}" -o "$home/site/kvcached/_C.so" \
    -L"$home/site/kvcached" -lfake_vmm -L"$torch/lib" -ltorch -ltorch_cpu -lc10 -Wl,-rpath,'$ORIGIN' -Wl,-rpath,"$torch/lib"
}

rm -rf "$home"
mkdir -p "$home"
step kvcached-fetch "fetch $allocator" fetch
step kvcached-compile "compile it against the stand-in" compile
step kvcached-check "import it" env PYTHONPATH="$home/site" "$python" -c 'import kvcached.vmm_ops as ops; print(ops.PageAllocator)'
stamp "$home/stamp" "$made_by"
