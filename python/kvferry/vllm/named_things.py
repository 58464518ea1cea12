# SPDX-License-Identifier: Apache-2.0
"""What clients have sent that kvferry does not know, and the log has named."""


class NamedThings:
    """Remembers what was named, up to a bound: a client may send ever new things."""

    _MOST = 32

    def __init__(self) -> None:
        self._names: set[str] = set()

    @property
    def is_full(self) -> bool:
        """Whether nothing else will be named."""
        return len(self._names) >= self._MOST

    def add(self, name: str) -> bool:
        """Return whether it is to be named now: it was not yet, and there is room."""
        if self.is_full or name in self._names:
            return False
        self._names.add(name)
        return True
