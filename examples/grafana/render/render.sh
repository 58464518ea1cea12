#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Draw kvferry.json from the metrics of a running `vllm serve` with kvferry.
#   examples/grafana/render/render.sh HOST:PORT [PICTURE.png]
#   SPAN        how much time is shown, and how long the server is watched first (default 15m)
#   PROMETHEUS  where a Prometheus listens that this script has started; then no other is started
# Needs npm, and Debian's prometheus, chromium and pngquant.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$here/../../../build/grafana
picture=$(realpath "${2:-$here/../../../docs/grafana.png}")
span=${SPAN:-15m}

mkdir -p "$work/page/build/img"
cp "$here/package.json" "$work"
npm install --prefix "$work" --no-package-lock --legacy-peer-deps --ignore-scripts --no-audit --no-fund --silent
NODE_PATH=$work/node_modules "$work/node_modules/.bin/esbuild" "$here/render.jsx" \
  --bundle --minify --jsx=automatic --log-level=error --loader:.ttf=empty --define:process.env.NODE_ENV='"production"' \
  --outfile="$work/page/render.js"
cp -r "$work/node_modules/@grafana/ui/dist/public/img/icons" "$work/page/build/img"
cat >"$work/page/index.html" <<'END'
<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="render.css"><div id="root"></div>
<script>window.__grafana_public_path__ = '/user/'</script><script src="render.js"></script>
END

prometheus=${PROMETHEUS:-}
if [[ -z $prometheus ]]; then
  prometheus=127.0.0.1:19090
  cat >"$work/prometheus.yml" <<END
scrape_configs: [{job_name: vllm, scrape_interval: 5s, static_configs: [{targets: ['$1']}]}]
END
  rm -rf "$work/data"
  prometheus --config.file="$work/prometheus.yml" --storage.tsdb.path="$work/data" \
    --web.listen-address=$prometheus --web.user-assets="$work/page" --log.level=warn &
  server=$!
  trap 'kill $server' EXIT
  timeout "$span" tail --pid=$server -f /dev/null || kill -0 $server
fi

height=$(node -p "88 + 38 * Math.max(...require('$here/../kvferry.json').panels.map(({gridPos: p}) => p.y + p.h))")
chromium --headless --no-sandbox --hide-scrollbars --window-size="1400,$height" --virtual-time-budget=20000 \
  --enable-logging=stderr --screenshot="$picture" "http://$prometheus/user/index.html?span=$span" 2>&1 |
  { grep CONSOLE || true; }
pngquant --force --skip-if-larger --output "$picture" 128 "$picture"
