# SPDX-License-Identifier: Apache-2.0
"""The unknown things from clients that the log has named already."""


class NamedThings:
    """Remembers the names that were logged, up to a limit, because a client can send new ones without end."""

    _MOST = 32

    def __init__(self) -> None:
        self._names: set[str] = set()

    @property
    def is_full(self) -> bool:
        """Whether no other name will be logged."""
        return len(self._names) >= self._MOST

    def add(self, name: str) -> bool:
        """Return whether the name should be logged now: it is new, and the limit is not reached."""
        if self.is_full or name in self._names:
            return False
        self._names.add(name)
        return True
