# SPDX-License-Identifier: Apache-2.0
"""Requests whose load failed: vLLM goes on to reserve room for them, and others must not wait for it."""


class FailedLoads:
    """What a lookup has to know of failed loads; used by the engine's scheduler thread only.

    After a failed load vLLM frees the request's blocks and goes on to reserve as many for it until it gets blocks again
    (``Scheduler._inflight_prefill_reserved_blocks()``). Only loads are held back by what is reserved, so nobody may
    wait for a load while such a request stands:

    - The request itself computes its prefix: to load it again it would need room beside its own reservation. Its first
      lookup is put off, which sends it behind those that hold blocks: vLLM keeps it where it stood (0.33), and if there
      is no room for it, all that come after it would wait for ever.
    - Another one, which was preempted and stands in front of it, is offered its load once. If vLLM has no room for the
      load, the request computes, too.
    """

    def __init__(self) -> None:
        self._placed: set[str] = set()  # requests that got blocks
        self._was_put_off: dict[str, bool] = {}  # of requests that have had no blocks since their load failed
        self._offered: set[str] = set()  # requests whose load was offered and has not begun

    def __contains__(self, request_id: str) -> bool:
        """Whether the request's load failed and it has had no blocks since."""
        return request_id in self._was_put_off

    def add(self, request_id: str) -> None:
        """Note that a request's load failed, kvferry's or another connector's; ignored if it has ended."""
        if request_id in self._placed:
            self._was_put_off[request_id] = False

    def take_put_off(self, request_id: str) -> bool:
        """Whether this lookup is to be put off; true for the first one after a failed load."""
        if self._was_put_off.get(request_id, True):
            return False
        self._was_put_off[request_id] = True
        return True

    def may_load(self, request_id: str) -> bool:
        """Whether a load may be offered to the request; if so, it has been."""
        if self._was_put_off and (request_id in self._was_put_off or request_id in self._offered):
            return False
        self._offered.add(request_id)
        return True

    def on_allocated(self, request_id: str) -> None:
        """Note that the request got blocks."""
        self.forget(request_id)
        self._placed.add(request_id)

    def forget(self, request_id: str) -> None:
        """Note that the request has ended; any number of times."""
        self._placed.discard(request_id)
        self._was_put_off.pop(request_id, None)
        self._offered.discard(request_id)
