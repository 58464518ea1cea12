# SPDX-License-Identifier: Apache-2.0
"""The entry point of ``vllm.general_plugins``, which tells vLLM the connector's name.

vLLM calls it in each of its processes, with any connector or none. So this module imports nothing else of kvferry, and
of vLLM only the factory of connectors, which every engine has imported by then. The connector and the core are imported
when vLLM looks up the name.
"""

import functools

_NAME = "KvFerryConnector"
_MODULE = "kvferry.vllm"


@functools.cache
def register_connector() -> None:
    """Register the connector with vLLM's factory, once in a process; idempotent, and never raises.

    A problem is only a warning, because an engine with another connector must not fail because of this one.
    """
    from vllm.logger import init_logger

    logger = init_logger("vllm.kvferry")
    try:
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

        register = KVConnectorFactory.register_connector
    except (ImportError, AttributeError) as error:
        logger.warning(
            "kvferry cannot register the connector %s with this vLLM, which has no "
            "KVConnectorFactory.register_connector where vLLM 0.30 to 0.33 have it (%s); install one of these "
            "releases, or uninstall kvferry",
            _NAME,
            error,
        )
        return
    try:
        register(_NAME, _MODULE, _NAME)
    except ValueError:
        logger.warning(
            'vLLM already has another connector named %s, and "kv_connector": "%s" alone selects that one; to select '
            'kvferry\'s, add "kv_connector_module_path": "%s"',
            _NAME,
            _NAME,
            _MODULE,
        )
