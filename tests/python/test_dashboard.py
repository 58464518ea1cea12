# SPDX-License-Identifier: Apache-2.0
"""The Grafana dashboard shows every metric that there is; it and the alert rules have none that there is not."""

import json
import re
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from kvferry.vllm.stats import METRICS, SCHEDULER_KEYS
from prometheus_client import Counter, Histogram

DASHBOARD = Path(__file__).parents[2] / "examples/grafana/kvferry.json"
ALERTS = DASHBOARD.with_name("alerts.yml")
SUFFIXES = {Counter: "_total", Histogram: "_bucket"}
# Of vLLM's counter of prompt tokens.
SOURCES = {"local_compute", "local_cache_hit", "external_kv_transfer"}
NAMES = {name + SUFFIXES.get(metric.kind, ""): metric for name, metric in METRICS.items()}


@pytest.fixture(scope="module")
def panels() -> list[dict[str, Any]]:
    """Those that draw something."""
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def expressions(panels: list[dict[str, Any]]) -> list[str]:
    return [target["expr"] for panel in panels for target in panel["targets"]]


def test_every_metric_is_drawn_by_the_name_that_prometheus_has(panels: list[dict[str, Any]]) -> None:
    drawn = {name for text in expressions(panels) for name in re.findall(r"vllm:kvferry_(\w+)", text)}
    assert drawn == set(NAMES)


def test_counters_are_drawn_as_rates_and_only_they(panels: list[dict[str, Any]]) -> None:
    for text in expressions(panels):
        for name in re.findall(r"vllm:kvferry_(\w+)", text):
            assert ("rate(" in text) == (NAMES[name].kind in (Counter, Histogram)), text


def test_expressions_sum_by_labels_that_the_metric_has(panels: list[dict[str, Any]]) -> None:
    for panel in panels:
        for target in panel["targets"]:
            labels = {"engine", *(NAMES[name].label for name in re.findall(r"kvferry_(\w+)", target["expr"]))}
            if "vllm:prompt_tokens_by_source" in target["expr"]:
                labels.add("source")
            grouped = set(re.findall(r"\w+", "".join(re.findall(r"by \((.*?)\)", target["expr"])))) - {"le"}
            assert grouped <= labels, target["expr"]
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) == grouped


def test_panels_have_places_and_names_of_their_own(panels: list[dict[str, Any]]) -> None:
    for key in ("id", "title"):
        assert len({panel[key] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    for one, other in combinations(places, 2):
        apart = [
            first[start] + first[size] <= second[start]
            for start, size in (("x", "w"), ("y", "h"))
            for first, second in ((one, other), (other, one))
        ]
        assert any(apart), (one, other)
    assert all(place["x"] + place["w"] <= 24 for place in places)
    assert all(before["y"] <= after["y"] for before, after in pairwise(places))


def test_figures_do_not_take_the_thresholds_that_grafana_assumes(panels: list[dict[str, Any]]) -> None:
    """Without a colour or thresholds, a figure of more than 80 is red."""
    for panel in panels:
        if panel["type"] != "timeseries":
            defaults = panel["fieldConfig"]["defaults"]
            assert defaults["color"]["mode"] == ("thresholds" if "thresholds" in defaults else "fixed"), panel["title"]


def test_settings_of_one_series_name_a_series_that_there_is(panels: list[dict[str, Any]]) -> None:
    values = {key.partition("/")[2] for key in SCHEDULER_KEYS.values()} | SOURCES
    for panel in panels:
        targets = {target["refId"] for target in panel["targets"]}
        for override in panel["fieldConfig"]["overrides"]:
            known = {"byName": values, "byFrameRefID": targets}[override["matcher"]["id"]]
            assert override["matcher"]["options"] in known, panel["title"]


# ---- alert rules ----


@pytest.fixture(scope="module")
def rules() -> list[dict[str, Any]]:
    [group] = yaml.safe_load(ALERTS.read_text())["groups"]
    return list(group["rules"])


def test_alerts_ask_for_metrics_and_labels_that_there_are(rules: list[dict[str, Any]]) -> None:
    assert len({rule["alert"] for rule in rules}) == len(rules) > 0
    for rule in rules:
        names = re.findall(r"vllm:kvferry_(\w+)", rule["expr"])
        assert names
        assert set(names) <= set(NAMES), rule["expr"]
        labels = {"engine", *(NAMES[name].label for name in names)}
        grouped = set(re.findall(r"\w+", " ".join(re.findall(r"by \((.*?)\)", rule["expr"]))))
        assert grouped <= labels, rule["expr"]
        selected = set(re.findall(r"[{,]\s*(\w+)\s*=~?\"", rule["expr"]))
        assert selected <= labels, rule["expr"]
        told = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
        assert told <= grouped, rule["alert"]


def test_a_shared_tier_is_ready_when_the_ranks_are(rules: list[dict[str, Any]]) -> None:
    """There, tier_ready_blocks counts the engine's own slots, and would never reach the tier's size."""
    [rule] = [rule for rule in rules if rule["alert"] == "KvferryTierNotReady"]
    assert "kvferry_tier_ready_blocks" not in rule["expr"]


def test_alerts_take_increases_of_counters_and_only_of_them(rules: list[dict[str, Any]]) -> None:
    for rule in rules:
        for name, window in re.findall(r"vllm:kvferry_(\w+)(?:{[^}]*})?(\[\w+\])?", rule["expr"]):
            assert bool(window) == (NAMES[name].kind in (Counter, Histogram)), rule["expr"]


def test_alerts_select_values_that_the_engine_sets(rules: list[dict[str, Any]]) -> None:
    values = {key.partition("/")[2] for key in SCHEDULER_KEYS.values()}
    for rule in rules:
        for wanted in re.findall(r"(?:reason|state)=~?\"([^\"]+)\"", rule["expr"]):
            assert set(wanted.split("|")) <= values, rule["expr"]
