#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs NIXL, which carries KV caches between engines, into build/fleet/site. Put that folder before .venv on the
# path.
set -euo pipefail
. "$(dirname "$0")/step.sh"
cd "$KVFERRY_ROOT"

home=$KVFERRY_ROOT/build/fleet
python=$KVFERRY_ROOT/.venv/bin/python
read -ra pip_args <<<"${KVFERRY_PIP_ARGS:-}"
made_by=$(content_hash tools/setup_fleet.sh tools/requirements-fleet.txt .venv/.kvferry/environment)
is_stamped "$home/stamp" "$made_by" && exit 0

rm -rf "$home"
step fleet-install "install NIXL (0.1 GB)" \
  "$python" -m pip --disable-pip-version-check install --no-deps --only-binary :all: "${pip_args[@]}" \
  --target "$home/site" -r tools/requirements-fleet.txt
step fleet-check "start an agent of it with UCX" env PYTHONPATH="$home/site" UCX_TLS=tcp,self "$python" -c '
from nixl._api import nixl_agent, nixl_agent_config
agent = nixl_agent("check", nixl_agent_config(backends=["UCX"]))
assert "UCX" in agent.backends, agent.get_plugin_list()'
stamp "$home/stamp" "$made_by"
