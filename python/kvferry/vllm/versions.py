# SPDX-License-Identifier: Apache-2.0
"""What differs between the vLLM releases that the connector runs under.

============================  ==================================  ==================================================
what                          0.32                                0.33
============================  ==================================  ==================================================
sleep mode                    the connector cannot object and is  ``supports_sleep_mode`` is asked when the engine's
                              not told: `preflight` refuses       configuration is made
model runner v2               zeroing and copy-on-write after     zeroing and copy-on-write before
                              ``handle_preemptions``              ``handle_preemptions``; both before the bind, which
                                                                  is where kvferry's fence is
a request whose load failed   looks for blocks where it stands    does so before requests that hold blocks, which wait
                              in the queue                        for ever if there is no room for it; a lookup that is
                                                                  put off once lets them pass (`scheduler_side`)
============================  ==================================  ==================================================
"""

import re

from vllm.logger import init_logger

from kvferry.errors import ConfigError

logger = init_logger("vllm.kvferry")

OLDEST = (0, 32)
NEWEST_TESTED = (0, 33)


def check_installed() -> None:
    """Check the installed vLLM. To be called before the connector is imported: older releases lack what it imports.

    Raises
    ------
    ConfigError
        It is older than the oldest release that the connector can run under.

    """
    import vllm

    check(vllm.__version__)


def check(version: str) -> None:
    """Check a vLLM version, e.g. ``"0.32.0+cpu"``; warn of one that kvferry was not tested with.

    Raises
    ------
    ConfigError
        It is older than `OLDEST`.

    """
    tested = f"{_text(OLDEST)} to {_text(NEWEST_TESTED)}"
    match = re.match(r"v?(\d+)\.(\d+)", version)
    if match is None:
        logger.warning("kvferry cannot tell the vLLM release from %r; it is tested with %s", version, tested)
        return
    release = (int(match[1]), int(match[2]))
    if release < OLDEST:
        raise ConfigError(
            f"vLLM is {version}; allowed is {_text(OLDEST)} or newer (tested: {tested}); upgrade vLLM or start it "
            "without KvFerryConnector"
        )
    if release > NEWEST_TESTED:
        logger.warning("kvferry is not tested with vLLM %s; it is tested with %s", version, tested)


def _text(release: tuple[int, int]) -> str:
    return f"{release[0]}.{release[1]}"
