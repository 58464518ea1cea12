# SPDX-License-Identifier: Apache-2.0
"""Times only the scheduler-side hooks of a KV connector."""

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
    """The cost of a sequence of hook calls.

    Attributes
    ----------
    ns
        Nanoseconds of the thread: for each call its wall time or its CPU time, whichever is smaller. Wall time includes
        other processes, and CPU time is read by a system call, which makes it imprecise for short calls. The smaller
        one is right in both cases.
    wall_ns
        Nanoseconds of wall time.
    num_calls
        Number of hook calls.
    worst_ns, worst_hook
        The most expensive single call.
    by_hook
        The share of each hook in `ns`.

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
        The connector. Its hooks are replaced, only in this object.

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
        if hook == "take_events":  # The result can be a generator, which works when it is read.
            hook_function = function

            def function(*args: Any, **kwargs: Any) -> Any:
                events = hook_function(*args, **kwargs)
                return list(events) if hasattr(events, "__next__") else events

        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._is_inside:  # If one hook calls another, only the outer one counts.
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
        """Measure what the timer itself adds to a call. The clock must have no calls."""

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
        """Return the cost of the calls since the last `take`."""
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
