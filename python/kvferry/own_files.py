# SPDX-License-Identifier: Apache-2.0
"""Files in shared memory that the processes of one user share, and that no other user can access."""

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from kvferry.errors import ResourceError


@contextlib.contextmanager
def opened(path: Path, flags: int, *, foreign: str, gone: str | None = None) -> Iterator[int]:
    """Open a file, if it belongs to this user and no other user can access it.

    Parameters
    ----------
    path, flags
        As for `os.open`. A link is not followed.
    foreign, gone
        What the error says behind the path if the file is another one, and if there is none. None: what the system
        says.

    Raises
    ------
    ResourceError
        It cannot be opened, or is another user's.

    """
    try:
        file = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        if gone is not None and isinstance(error, FileNotFoundError):
            raise ResourceError(f"{path} {gone}") from None
        raise ResourceError(f"{path} cannot be opened: {error.strerror}") from None
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise ResourceError(f"{path} {foreign}")
        yield file
    finally:
        os.close(file)


def is_locked(file: int) -> bool:
    """Whether a process that lives holds the file's lock (flock): the one that made it."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False
