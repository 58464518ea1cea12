#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what carries KV caches between nodes into build/fleet: NIXL and Mooncake (site), and the Debian packages that
# Mooncake needs, and a Redis server (lib and bin), which are not installed on the machine. With it:
#   PYTHONPATH=build/fleet/site LD_LIBRARY_PATH=build/fleet/lib PATH=build/fleet/bin:build/fleet/site/bin:$PATH
set -euo pipefail
. "$(dirname "$0")/step.sh"
cd "$KVFERRY_ROOT"

home=$KVFERRY_ROOT/build/fleet
python=$KVFERRY_ROOT/.venv/bin/python
# Mooncake's libraries, and those of redis-tools that not every machine has.
debian=(libibverbs1 libnl-3-200 libnl-route-3-200 redis-tools libjemalloc2 liblzf1)
read -ra pip_args <<<"${KVFERRY_PIP_ARGS:-}"
made_by=$(content_hash tools/setup_fleet.sh tools/requirements-fleet.txt .venv/.kvferry/environment)
is_stamped "$home/stamp" "$made_by" && exit 0

fetch_debian() {
  mkdir -p "$home/debian" "$home/lib" "$home/bin"
  cd "$home/debian"
  if ! apt-get download "${debian[@]}"; then # no lists of packages yet, or old ones
    if [ "$(id -u)" -eq 0 ]; then apt-get update; else sudo apt-get update; fi
    apt-get download "${debian[@]}"
  fi
  for package in *.deb; do dpkg-deb -x "$package" .; done
  find . -name '*.so.*' -exec mv -t "$home/lib" {} +
  # The server is in redis-tools, under a name by which it checks files.
  cp -L usr/bin/redis-check-rdb "$home/bin/redis-server"
  rm -rf "$home/debian"
}

rm -rf "$home"
step fleet-install "install NIXL and Mooncake (0.1 GB)" \
  "$python" -m pip --disable-pip-version-check install --no-deps --only-binary :all: "${pip_args[@]}" \
  --target "$home/site" -r tools/requirements-fleet.txt
step fleet-debian "unpack ${debian[*]}" fetch_debian
export PYTHONPATH=$home/site LD_LIBRARY_PATH=$home/lib
step fleet-check "start an agent of NIXL with UCX" env UCX_TLS=tcp,self "$python" -c '
from nixl._api import nixl_agent, nixl_agent_config
agent = nixl_agent("check", nixl_agent_config(backends=["UCX"]))
assert "UCX" in agent.backends, agent.get_plugin_list()'
step fleet-check-store "import Mooncake's store" "$python" -c 'import mooncake.store'
step fleet-check-redis "start Redis's server" "$home/bin/redis-server" --version
stamp "$home/stamp" "$made_by"
