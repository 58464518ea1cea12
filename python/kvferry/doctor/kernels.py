# SPDX-License-Identifier: Apache-2.0
"""Which kernels this build has, and whether this machine's GPUs can run them."""

from collections.abc import Iterator, Mapping

from kvferry import _core
from kvferry.doctor.drivers import Answer, Device
from kvferry.doctor.fact import Fact

_VENDORS = {"cuda": "NVIDIA", "hip": "AMD"}


def examine_kernels(answers: Mapping[str, Answer]) -> list[Fact]:
    """Compare the build with the devices in the drivers' `answers` (by back end)."""
    facts = [*_built()]
    for backend, answer in answers.items():
        vendor = _VENDORS[backend]
        if not answer.is_sane:
            facts.append(Fact(f"{vendor} driver", "problem", answer.why_not))
        for ordinal, device in enumerate(answer.devices):
            name = f"{vendor} {device.pci_address or f'device {ordinal}'}: kernels"
            facts.append(_fitting(name, backend, device))
    if not any(answer.devices for answer in answers.values()):
        facts.append(Fact("kernels for the GPUs", "unknown", "no driver shows one: see the back ends above"))
    return facts


def missing_kernels(answers: Mapping[str, Answer]) -> str:
    """Return why an engine would refuse this machine's GPUs for want of kernels; empty if one of them has some."""
    devices = [(backend, device) for backend, answer in answers.items() for device in answer.devices]
    if not devices or any(device.kernels for _, device in devices):
        return ""
    backend, device = devices[0]
    # The engine's words (gpu/src/driver/driver_kernels.cpp), with what to do here.
    return f"this build has no kernels for {device.architecture} ({device.name}): {_remedy(backend, device)}"


def _built() -> Iterator[Fact]:
    toolkit, cuda, hip = _core.built_kernels()
    if cuda:
        yield Fact("NVIDIA kernels", "ok", f"built with CUDA {toolkit} for {', '.join(cuda)}; PTX for newer GPUs")
    else:
        yield Fact("NVIDIA kernels", "note", "none: this build had no nvcc (tools/setup_nvcc.sh installs it)")
    if hip:
        yield Fact("AMD kernels", "ok", f"for {', '.join(hip)}; hipRTC compiles them for others")
    else:
        yield Fact("AMD kernels", "note", "none: this build had no hipcc; hipRTC compiles them at each start")


def _fitting(name: str, backend: str, device: Device) -> Fact:
    has, of = device.kernels, f"{device.architecture} ({device.name}, {device.driver})"
    remedy = _compile_for(backend, device)
    if not has:
        return Fact(name, "problem", f"none for {of}: {_remedy(backend, device)}")
    if has == "hipRTC":
        return Fact(name, "note", f"none for {of}: hipRTC compiles them at each start; or {remedy}")
    if has.startswith("PTX"):
        return Fact(name, "note", f"{has} for {of}: the driver compiles it at the first start; or {remedy}")
    return Fact(name, "ok", f"{has} for {of}")


def _compile_for(backend: str, device: Device) -> str:
    number = device.architecture.removeprefix("sm_")
    return f"build the wheel with -C cmake.define.KVFERRY_{backend.upper()}_ARCHITECTURES={number}"


def _remedy(backend: str, device: Device) -> str:
    return f"{_compile_for(backend, device)} and a toolkit that knows it"
