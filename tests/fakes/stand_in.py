# SPDX-License-Identifier: Apache-2.0
"""The cuda back end under an engine whose KV cache is on the CPU: on the stand-in driver (fake_driver/README.md).

The stand-in takes the engine's tensors for device memory, and the engine computes on its default stream: whatever the
connector submits there has run before the engine goes on, as if the engine's kernels were queued behind it.
"""

import contextlib
import ctypes
import functools
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

LIBRARY = Path(
    os.environ.get("KVFERRY_FAKE_CUDA")
    or Path(__file__).resolve().parents[2] / "build/wheel/tests/fakes/libfake_cuda.so"
)
HOOKS = ("bind", "pump", "save")


class StandIn:
    """The stand-in driver of this process.

    Raises
    ------
    OSError
        It was not built: the stages of tools/test_stages.py that need it build it.

    """

    def __init__(self) -> None:
        self._driver = ctypes.CDLL(str(LIBRARY))
        self._driver.kvferry_fake_adopt.argtypes = (ctypes.c_size_t, ctypes.c_size_t)
        self._driver.kvferry_fake_disown.argtypes = (ctypes.c_size_t, ctypes.c_size_t)
        self._driver.kvferry_fake_fail_nth.argtypes = (ctypes.c_char_p, ctypes.c_uint64, ctypes.c_int)
        self._driver.kvferry_fake_allocated_bytes.restype = ctypes.c_size_t

    def install(self, patch: Callable[[Any, str, Any], None]) -> None:
        """Let workers that are made from here on use it; `patch` is ``setattr`` or one that is taken back."""
        from kvferry.vllm import kv_device
        from kvferry.vllm.worker_side import WorkerSide

        patch(kv_device, "find", self._find)
        for name in HOOKS:
            patch(WorkerSide, name, self._settled(getattr(WorkerSide, name)))

    @property
    def allocated_bytes(self) -> int:
        """Device memory that is allocated, without what was adopted."""
        return int(self._driver.kvferry_fake_allocated_bytes())

    def disown(self, address: int, num_bytes: int) -> None:
        """Take device memory away that was adopted: work that touches it is refused."""
        self._driver.kvferry_fake_disown(address, num_bytes)

    def fail_nth(self, function: str, nth: int, code: int) -> None:
        """Let the `nth` call of a driver's function from now on fail with `code`, once."""
        self._driver.kvferry_fake_fail_nth(function.encode(), nth, code)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Let copies that begin meanwhile wait until the end of it."""
        self._driver.kvferry_fake_hold(1)
        try:
            yield
        finally:
            self._driver.kvferry_fake_hold(0)

    def _find(self, tensors: Iterable[Any], wanted: str) -> Any:
        from kvferry.vllm.kv_device import KvDevice

        class Device(KvDevice):
            def compute_stream(self) -> int:
                return 0

            def memory(self, utilization: float | None, profiled_bytes: int) -> None:
                return None

        for storage in {tensor.untyped_storage() for tensor in tensors}:
            self._driver.kvferry_fake_adopt(storage.data_ptr(), storage.nbytes())
        return Device("cuda", 0, str(LIBRARY))

    def _settled(self, hook: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(hook)
        def settled(*arguments: Any) -> None:
            hook(*arguments)
            self._driver.kvferry_fake_settle()

        return settled
