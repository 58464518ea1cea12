# SPDX-License-Identifier: Apache-2.0
"""The entry point of ``vllm.general_plugins``: vLLM then knows the connector by its name alone.

vLLM calls it in each of its processes, whatever connector the engine has, or none. So this module imports nothing of
kvferry's, and of vLLM the factory of connectors, which every engine has imported by then. The connector and the
core come when vLLM looks the name up.
"""

import functools

_NAME = "KvFerryConnector"
_MODULE = "kvferry.vllm"


@functools.cache
def register_connector() -> None:
    """Tell vLLM's factory where the connector is, once in a process; idempotent, and never an error.

    An engine with another connector must not end because of this one: what is wrong is a warning.
    """
    from vllm.logger import init_logger

    logger = init_logger("vllm.kvferry")
    try:
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

        register = KVConnectorFactory.register_connector
    except (ImportError, AttributeError) as error:
        logger.warning(
            "kvferry cannot make the connector %s known to this vLLM, which has no "
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
            'vLLM has another connector of the name %s already: "kv_connector": "%s" alone names that one; for '
            'kvferry\'s add "kv_connector_module_path": "%s"',
            _NAME,
            _NAME,
            _MODULE,
        )
