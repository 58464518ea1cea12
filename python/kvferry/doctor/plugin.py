# SPDX-License-Identifier: Apache-2.0
"""Whether vLLM would find the connector by its name alone."""

from collections.abc import Mapping
from importlib import metadata

from kvferry.doctor.fact import Fact

_GROUP, _ENTRY = "vllm.general_plugins", "kvferry"
_VARIABLE = "VLLM_PLUGINS"
_OTHERWISE = (
    "vLLM answers 'Unsupported connector type: KvFerryConnector' unless the configuration has "
    '"kv_connector_module_path": "kvferry.vllm"'
)


def examine_plugin(environment: Mapping[str, str]) -> Fact:
    """Check the entry point by which vLLM finds the connector, and the variable that can exclude it.

    Parameters
    ----------
    environment
        Environment variables that an engine would have.

    """
    if not metadata.entry_points(group=_GROUP, name=_ENTRY):
        return Fact(
            "vLLM plugin", "problem",
            f"no package of kvferry with an entry point of {_GROUP} is installed here: {_OTHERWISE}; install kvferry's "
            "wheel",
        )  # fmt: skip
    wanted = environment.get(_VARIABLE)
    # vLLM does not strip spaces either.
    if wanted is not None and _ENTRY not in wanted.split(","):
        return Fact(
            "vLLM plugin", "problem",
            f"{_VARIABLE} is {wanted!r} and leaves {_ENTRY!r} out: {_OTHERWISE}; add {_ENTRY} to {_VARIABLE}, or unset "
            "it",
        )  # fmt: skip
    return Fact("vLLM plugin", "ok", "vLLM finds KvFerryConnector by its name")
