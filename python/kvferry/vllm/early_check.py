# SPDX-License-Identifier: Apache-2.0
"""Checks of the user's configuration before vLLM starts an engine process.

vLLM has no hook for this. But in every release from 0.30 to 0.33 it looks the connector's class up while it makes its
``VllmConfig``, in the process of the API server: to find out whether the class supports several KV cache groups, and
whether it allows CUDA graphs. A mistake that is found there costs seconds; in an engine process it costs the start of
all of them.
"""

from vllm.config import KVTransferConfig

from kvferry import transfer_config
from kvferry.config import KvFerryConfig
from kvferry.vllm.callers import argument_of


def check_lookup() -> None:
    """Check the configuration for which vLLM looks the class up now. Does nothing if vLLM is not looking it up.

    Only keys, values and the role are checked: the engine may be on another machine.

    Raises
    ------
    ConfigError
        kvferry would refuse it at the start of the engine.

    """
    given = argument_of("get_connector_class", "kv_transfer_config", KVTransferConfig)
    if given is None:
        return
    transfer_config.check_role(given.kv_role)
    KvFerryConfig.from_extra_config(given.kv_connector_extra_config or {})
