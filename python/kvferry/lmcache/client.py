# SPDX-License-Identifier: Apache-2.0
"""The native client that LMCache's ``native_plugin`` adapter drives."""

import logging
import sys

from kvferry import tiers
from kvferry._core import ObjectClient
from kvferry.errors import ConfigError
from kvferry.lmcache.params import IN_PROCESS, AdapterParams
from kvferry.sizes import format_size


class KvFerryClient(ObjectClient):
    """kvferry's tier, as a native client of LMCache.

    LMCache calls the core directly, without Python in between: ``event_fd``, ``submit_batch_set``,
    ``submit_batch_get``, ``submit_batch_exists``, ``submit_batch_delete``, ``close``. Only ``drain_completions`` is
    ours, because C++ does not log.

    Parameters
    ----------
    params
        LMCache's ``adapter_params``, as :class:`kvferry.lmcache.params.AdapterParams` lists them.

    Raises
    ------
    ConfigError
        A parameter is unknown or not allowed, or the call comes from LMCache's deprecated in-process interface.
    ResourceError
        The machine does not have that much memory.

    """

    def __init__(self, *args: object, **params: object) -> None:
        if args:
            raise ConfigError(IN_PROCESS)
        chosen = AdapterParams.from_params(params)
        super().__init__(**vars(chosen), grace_s=tiers.grace_s())
        logger = _logger()
        logger.info(
            "kvferry: %s for LMCache, %s; %d copy threads; eviction %s",
            format_size(chosen.capacity), self.memory(), self.num_workers, chosen.eviction,
        )  # fmt: skip
        if num_found := self.snapshot()["num_objects_of_others"]:
            logger.info("kvferry: %d objects of other servers, or of servers that have ended, are available", num_found)
        if warning := self.warning():
            logger.warning("kvferry: %s", warning)

    def drain_completions(self) -> list[tuple[int, bool, str, list[bool] | None]]:
        """Take the completions, and log what was found damaged.

        Returns
        -------
        list of tuple
            ``(id, ok, error, flags)`` of each completed batch, as `kvferry._core.ObjectClient` says.

        """
        completions = super().drain_completions()
        for line in self.take_warnings():
            _logger().warning("kvferry: %s", line)
        return completions


def _logger() -> logging.Logger:
    """Return LMCache's own logger if LMCache is loaded, so that its users see the lines."""
    if "lmcache" in sys.modules:
        from lmcache.logging import init_logger

        logger: logging.Logger = init_logger("lmcache.kvferry")
        return logger
    return logging.getLogger("kvferry")
