# SPDX-License-Identifier: Apache-2.0
"""Which weights the model has now, by the versions that vLLM is told (``update_weight_version``, a weight update)."""

import hashlib
import secrets
from collections.abc import Callable
from typing import NamedTuple

from vllm.logger import init_logger

from kvferry.errors import ConfigError
from kvferry.vllm.callers import being_made

logger = init_logger("vllm.kvferry")

AT_START = "default"
"""vLLM's own version of the weights before it is told one."""


class Change(NamedTuple):
    """A change of the weights.

    Attributes
    ----------
    weights
        A number for the new weights; not 0.
    forget_old
        Whether to forget the blocks of the old weights: they had no version, so they cannot return.

    """

    weights: int
    forget_old: bool


class WeightsVersions:
    """The versions of one training run, and whether the model's weights have a version now.

    They have one until a reset of the cache, which vLLM makes before weights can change. Then they have none until
    vLLM is told a version, the same one or another.

    Parameters
    ----------
    run
        Name of the training run: the key `weights_run`.
    at_start
        A number for the weights of the start. None: derived from the run alone, in a tier that no other engine shares.

    """

    def __init__(self, run: str, at_start: int | None = None) -> None:
        self._run = run
        self.at_start = self._digest(AT_START) if at_start is None else at_start
        self._is_named = True

    def name(self, version: str) -> Change:
        """Note that the weights have this version now."""
        weights = self.at_start if version == AT_START else self._digest(version)
        change = Change(weights, forget_old=not self._is_named)
        self._is_named = True
        logger.info(
            "kvferry: the weights are version %r of %r: blocks of that version are found and stored", version, self._run
        )
        return change

    def unname(self) -> Change:
        """Note a reset of the cache: the weights have no version now."""
        change = Change(secrets.randbits(64) | 1, forget_old=not self._is_named)
        self._is_named = False
        logger.info(
            "kvferry: the cache was reset: blocks of earlier versions are found again when vLLM is told the weights' "
            "version (update_weight_version)"
        )
        return change

    def _digest(self, version: str) -> int:
        text = repr(("weights", self._run, version))
        return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "little") or 1


def follow_engine(on_version: Callable[[str], None]) -> None:
    """Call `on_version` whenever the engine that is being created is told a version of its weights.

    vLLM tells its engine core, but no connector. The core creates the scheduler, which creates the connector, so the
    core is on the call stack now. Its method is wrapped, on this one object.

    Raises
    ------
    ConfigError
        The core is not on the call stack, so the connector would not hear of versions.

    """
    from vllm.v1.engine.core import EngineCore

    core = being_made(EngineCore)
    if core is None:
        raise ConfigError(
            "weights_run is set, and the connector is not made by vLLM's engine core, which is told the versions; "
            "use vLLM's own engine, or leave weights_run out"
        )
    set_version = core.set_weight_version

    def set_weight_version(weight_version: str) -> None:
        set_version(weight_version)
        on_version(weight_version)

    core.set_weight_version = set_weight_version
