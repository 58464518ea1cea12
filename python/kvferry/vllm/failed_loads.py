# SPDX-License-Identifier: Apache-2.0
"""Requests whose load failed. vLLM keeps room reserved for them, and no other request may wait for that room."""


class FailedLoads:
    """What a lookup has to know about failed loads; used only by the engine's scheduler thread.

    After a failed load vLLM frees the request's blocks, and reserves the same number of blocks for it until it gets
    blocks again (``Scheduler._inflight_prefill_reserved_blocks()``). This reservation holds back only loads. So no
    request may wait for a load while there is such a reservation:

    - The request itself computes its prefix. To load it again, it would need room in addition to its own reservation.
      Its first lookup is put off, so that requests that hold blocks come first. Otherwise vLLM 0.33 keeps it in its
      place in the queue, and if there is no room for it, all requests after it would wait for ever.
    - Another request, which was preempted and is before it in the queue, is offered its load once. If vLLM has no room
      for the load, that request computes its prefix too.
    """

    def __init__(self) -> None:
        self._placed: set[str] = set()  # requests that got blocks
        # By request that has had no blocks since its load failed: whether its first lookup was put off.
        self._was_put_off: dict[str, bool] = {}
        self._offered: set[str] = set()  # requests whose load was offered and has not begun

    def __contains__(self, request_id: str) -> bool:
        """Whether the request's load failed and it has had no blocks since."""
        return request_id in self._was_put_off

    def add(self, request_id: str) -> None:
        """Note that a request's load failed, kvferry's or another connector's. Ignored if the request has ended."""
        if request_id in self._placed:
            self._was_put_off[request_id] = False

    def take_put_off(self, request_id: str) -> bool:
        """Whether to put off this lookup: true for the first one after a failed load."""
        if self._was_put_off.get(request_id, True):
            return False
        self._was_put_off[request_id] = True
        return True

    def may_load(self, request_id: str) -> bool:
        """Whether a load may be offered to the request. If so, it counts as offered."""
        if self._was_put_off and (request_id in self._was_put_off or request_id in self._offered):
            return False
        self._offered.add(request_id)
        return True

    def on_allocated(self, request_id: str) -> None:
        """Note that the request got blocks."""
        self.forget(request_id)
        self._placed.add(request_id)

    def forget(self, request_id: str) -> None:
        """Note that the request has ended; can be called any number of times."""
        self._placed.discard(request_id)
        self._was_put_off.pop(request_id, None)
        self._offered.discard(request_id)
