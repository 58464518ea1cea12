# SPDX-License-Identifier: Apache-2.0
"""Compares kvferry as an L2 of LMCache with LMCache's own local ones: the same ``lmcache bench l2`` for each, by turns.

``make bench-lmcache`` runs it. Every run stores and loads fresh keys. Only ratios within one table have a meaning.
Figures are medians, over the repetitions, of the p50 of a run's rounds. ``copy`` is the faster of a plain and a
streaming copy of the same bytes by the same number of threads, without keys or Python (``kvferry-bench copy``).
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LMCACHE = (str(ROOT / "build/lmcache/venv/bin/python"), str(ROOT / "bench/lab/lmcache_cli.py"))
MIB_KB = 1024
BARE_COPY = ROOT / "build/bench/bench/kvferry-bench"
GIB = 2**30
OURS, COPY = "kvferry", "copy"
QUIET = {"LMCACHE_TRACK_USAGE": "false", "LMCACHE_DISABLE_BANNER": "1", "LMCACHE_LOG_LEVEL": "ERROR"}
# The least ratios that are wanted: to fs_native, to the best of all for a batch and for one object, to a bare copy.
FS_RATIO, BEST_RATIO, SINGLE_RATIO, COPY_RATIO = 1.5, 1.15, 1.0, 0.85


def adapters(folder: Path, size_kb: int, room_gib: float, workers: int) -> dict[str, dict[str, object]]:
    """Return each adapter's configuration, and prepare the place to which it writes."""
    dax = folder / "dax"
    with dax.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, int(room_gib * GIB))
    files = folder / "fs"
    files.mkdir()
    return {
        OURS: {
            "type": "native_plugin",
            "module_path": "kvferry.lmcache",
            "class_name": "KvFerryClient",
            "adapter_params": {"capacity": int(room_gib * GIB), "num_workers": workers},
        },
        "fs_native": {"type": "fs_native", "base_path": str(files), "num_workers": workers},
        "dax": {
            "type": "dax",
            "device_path": str(dax),
            "max_dax_size_gb": room_gib,
            "slot_bytes": size_kb * 1024,
            "num_store_workers": workers,
            "num_load_workers": workers,
        },
        "mock": {"type": "mock", "max_size_gb": room_gib, "mock_bandwidth_gb": 100000},
    }


def run_one(adapter: dict[str, object], size_kb: int, num_keys: int, rounds: int) -> dict[str, float]:
    """Return the p50 in ms of store, lookup and load."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "result.json"
        done = subprocess.run(
            [
                *LMCACHE, "bench", "l2", "--l2-adapter", json.dumps(adapter), "--num-keys", str(num_keys),
                "--in-flight", "1", "--data-size-kb", str(size_kb), "--rounds", str(rounds), "--warmup-rounds", "2",
                "--lookup-max-hit-rate", "1.0", "--l1-align-bytes", "4096", "--no-skip-verify",
                "--format", "json", "--output", str(output),
            ],
            capture_output=True, text=True, check=False,
            env=os.environ | QUIET,
        )  # fmt: skip
        if done.returncode != 0 or not output.exists():
            sys.exit(f"lmcache bench l2 failed for {adapter['type']}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        metrics = json.loads(output.read_text())["metrics"]
    p50 = {}
    for section in metrics.values():
        if "operation" not in section:
            continue
        if section["total_success"] != rounds * num_keys:
            sys.exit(f"{adapter['type']}: {section['operation']} succeeded for {section['total_success']} keys only")
        p50[section["operation"].lower()] = section["duration_p50_ms"]
    return p50


def run_copy(size_kb: int, num_keys: int, rounds: int, workers: int) -> float:
    """Return the p50 in ms of the faster of a plain and a streaming copy."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "result.json"
        subprocess.run(
            [
                str(BARE_COPY), "copy", "--device", "host", "--path", "per_run", "--direction", "d2h",
                "--fragment", f"{size_kb}KiB", "--count", str(num_keys), "--placement", "contiguous",
                "--max-set", "1GiB", "--host-threads", str(workers), "--link-size", "16MiB",
                "--rounds", str(rounds), "--json", str(output),
            ],
            capture_output=True, check=True,
        )  # fmt: skip
        rows = json.loads(output.read_text())["rows"]
    return float(min(row["transfer_us_p50"] for row in rows if row["path"] in ("memcpy", "streaming"))) / 1e3


def measure(sizes_kb: list[int], counts: list[int], repeats: int, rounds: int, workers: int) -> list[dict[str, object]]:
    """Return one row per operation and cell."""
    rows: list[dict[str, object]] = []
    for size_kb in sizes_kb:
        for num_keys in counts:
            results: dict[str, list[dict[str, float]]] = {}
            for _ in range(repeats):
                folder = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="kvferry-lab-lmcache-"))
                try:
                    room_gib = max(0.25, 1.3 * size_kb * num_keys * (rounds + 2) / MIB_KB / MIB_KB)
                    for name, adapter in adapters(folder, size_kb, room_gib, workers).items():
                        results.setdefault(name, []).append(run_one(adapter, size_kb, num_keys, rounds))
                    copy = run_copy(size_kb, num_keys, rounds, workers)
                    results.setdefault(COPY, []).append({"store": copy, "load": copy})
                finally:
                    shutil.rmtree(folder)
            for operation in ("store", "load"):
                p50 = {name: statistics.median(one[operation] for one in found) for name, found in results.items()}
                rows.append({"operation": operation, "size_kb": size_kb, "num_keys": num_keys, "p50_ms": p50})
                print(line(rows[-1]), flush=True)
    return rows


def line(row: dict[str, object]) -> str:
    """Return a row of the table."""
    p50 = row["p50_ms"]
    assert isinstance(p50, dict)
    ours = max(p50[OURS], 0.005)
    to_fs = p50["fs_native"] / ours
    to_best = min(value for name, value in p50.items() if name not in (OURS, COPY)) / ours
    to_copy = p50[COPY] / ours
    wanted = BEST_RATIO if row["num_keys"] != 1 else SINGLE_RATIO
    is_short = {"fs": to_fs < FS_RATIO, "best": to_best < wanted, "copy": to_copy < COPY_RATIO}
    verdict = " ".join(["short of", *(name for name in is_short if is_short[name])]) if any(is_short.values()) else "ok"
    figures = " ".join(f"{p50[name]:>10.2f}" for name in p50)
    cell = f"{row['operation']:>6} {row['size_kb']:>6} {row['num_keys']:>5}"
    return f"{cell} {figures} {to_fs:>8.2f} {to_best:>8.2f} {to_copy:>8.2f}  {verdict}"


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes-kb", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--num-keys", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--workers", type=int, default=min(os.cpu_count() or 1, 8))
    parser.add_argument("--json", type=Path, help="where to write the rows as well")
    chosen = parser.parse_args()
    names = " ".join(f"{name:>10}" for name in (OURS, "fs_native", "dax", "mock", COPY))
    print(f"p50 in ms; ratios are times ours\n    op    KiB  keys {names}    to fs  to best  to copy")
    rows = measure(chosen.sizes_kb, chosen.num_keys, chosen.repeats, chosen.rounds, chosen.workers)
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
