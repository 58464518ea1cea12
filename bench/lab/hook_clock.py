# SPDX-License-Identifier: Apache-2.0
"""Times the scheduler-side hooks of a KV connector, and nothing else."""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter_ns, thread_time_ns
from typing import Any

HOOKS = (
    "on_new_request",
    "get_num_new_matched_tokens",
    "get_loaded_kv_cache_group_ids",
    "update_state_after_alloc",
    "get_external_cache_hit_sources",
    "build_connector_meta",
    "update_connector_output",
    "request_finished",
    "request_finished_all_groups",
    "take_events",
    "get_kv_connector_stats",
    "has_pending_push_work",
    "has_pending_block_frees",
)


@dataclass
class Cost:
    """What a stretch of hook calls cost.

    Attributes
    ----------
    ns
        Nanoseconds of the thread: for each call the smaller of wall and CPU time. Wall time counts what other processes
        took, CPU time is read by a system call and blurs short calls; the smaller one is right in both cases.
    wall_ns
        Nanoseconds that passed.
    num_calls
        Hooks called.
    worst_ns, worst_hook
        The dearest single call.
    by_hook
        Hook to its share of `ns`.

    """

    ns: float = 0.0
    wall_ns: float = 0.0
    num_calls: int = 0
    worst_ns: float = 0.0
    worst_hook: str = ""
    by_hook: dict[str, float] = field(default_factory=dict)

    def __iadd__(self, other: "Cost") -> "Cost":
        self.ns += other.ns
        self.wall_ns += other.wall_ns
        self.num_calls += other.num_calls
        if other.worst_ns > self.worst_ns:
            self.worst_ns, self.worst_hook = other.worst_ns, other.worst_hook
        for hook, ns in other.by_hook.items():
            self.by_hook[hook] = self.by_hook.get(hook, 0.0) + ns
        return self


class HookClock:
    """Wraps a connector's hooks in a timer.

    Parameters
    ----------
    connector
        Its hooks are replaced, in this object only.

    """

    def __init__(self, connector: object) -> None:
        self._calls: list[tuple[str, int, int]] = []
        self._is_inside = False
        self._wall_overhead_ns = 0.0
        self._cpu_overhead_ns = 0.0
        for hook in HOOKS:
            function = getattr(connector, hook, None)
            if function is not None:
                setattr(connector, hook, self._timed(hook, function))
        self.calibrate()

    def _timed(self, hook: str, function: Callable[..., Any]) -> Callable[..., Any]:
        calls = self._calls
        if hook == "take_events":  # May be a generator: its work is done where it is read.
            hook_function = function

            def function(*args: Any, **kwargs: Any) -> Any:
                events = hook_function(*args, **kwargs)
                return list(events) if hasattr(events, "__next__") else events

        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._is_inside:  # One hook calls another: the outer one counts.
                return function(*args, **kwargs)
            self._is_inside = True
            cpu = thread_time_ns()
            wall = perf_counter_ns()
            result = function(*args, **kwargs)
            wall = perf_counter_ns() - wall
            cpu = thread_time_ns() - cpu
            self._is_inside = False
            calls.append((hook, wall, cpu))
            return result

        return timed

    def calibrate(self, num_calls: int = 2000) -> None:
        """Measure what the timer itself adds to a call. The clock must hold no calls."""

        class Idle:
            def hook(self, first: object, second: object) -> None:
                """Cost nothing but the call."""

        idle = Idle()
        bare = idle.hook
        began = perf_counter_ns()
        for _ in range(num_calls):
            bare(idle, None)
        call_ns = (perf_counter_ns() - began) / num_calls
        timed = self._timed("idle", bare)
        for _ in range(num_calls):
            timed(idle, None)
        self._wall_overhead_ns = max(0.0, median(wall for _, wall, _ in self._calls) - call_ns)
        self._cpu_overhead_ns = max(0.0, median(cpu for _, _, cpu in self._calls) - call_ns)
        self._calls.clear()

    def take(self) -> Cost:
        """Return what was called since the last `take`."""
        cost = Cost(num_calls=len(self._calls))
        for hook, wall, cpu in self._calls:
            wall_ns = max(0.0, wall - self._wall_overhead_ns)
            ns = min(wall_ns, max(0.0, cpu - self._cpu_overhead_ns))
            cost.ns += ns
            cost.wall_ns += wall_ns
            cost.by_hook[hook] = cost.by_hook.get(hook, 0.0) + ns
            if ns > cost.worst_ns:
                cost.worst_ns, cost.worst_hook = ns, hook
        self._calls.clear()
        return cost
