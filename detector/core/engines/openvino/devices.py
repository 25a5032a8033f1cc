"""List OpenVINO's devices, and find the one for which a graph is compiled."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

from detector.core.engines.base import EngineOptions, Offer, translated
from detector.core.engines.openvino.hardware import device_files, why_missing
from detector.core.errors import EngineError, UsageError

NAMES = {"cpu": "CPU", "gpu": "GPU", "npu": "NPU"}
CAPABILITIES = {"fp32": "FP32", "bf16": "BF16", "fp16": "FP16", "int8": "INT8"}
ASKING = "ask for its devices"
# Properties that identify a device or its driver. No device has all of them.
IDENTITY = "FULL_DEVICE_NAME DEVICE_ARCHITECTURE DEVICE_UUID GPU_DRIVER_VERSION NPU_DRIVER_VERSION"


class Target(NamedTuple):
    """A device. ``device``: our name for it; ``own``: OpenVINO's name. ``compiled_for``: the same
    as ``own``, or the virtual device HETERO with ``own`` in it."""

    device: str
    own: str
    compiled_for: str
    full_name: str

    @property
    def kind(self) -> str:
        return self.device.partition(":")[0]


@cache
def open_core() -> Any:
    """Return the only ``Core`` of this process. A Core's CPU plugin sets the stack on which the
    calling thread handles signals, and frees the stack with the Core. If several Cores were freed
    in the wrong order, or in another thread, the next signal would crash the process (SIGSEGV)."""
    import openvino

    core = openvino.Core()
    # Turn off the cache that the environment or a configuration file may set, since nothing proves
    # who wrote its files. ``compiled`` stores models with such a proof.
    core.set_property({"CACHE_DIR": ""})
    return core


def find_target(core: Any, options: EngineOptions) -> Target:
    """Return the selected device; ``auto`` is the CPU. Raises EngineError, UsageError."""
    through = options.own.get("through")
    if through not in (None, "hetero"):
        raise UsageError(f"--engine-options through={through}: give hetero, or omit it")
    kind, _, index = ("cpu" if options.device == "auto" else options.device).partition(":")
    listed = _list_indices(core, kind)
    if not listed:
        raise EngineError(f"engine openvino: --device {options.device}: {why_missing(kind)}")
    if index and index not in listed and (index, listed) != ("0", [""]):
        names = " and ".join(_our_name(kind, number) for number in listed)
        raise EngineError(f"engine openvino: --device {options.device}: OpenVINO lists {names}")
    at = index if index in listed else listed[0]
    own = f"{NAMES[kind]}.{at}" if at else NAMES[kind]
    compiled_for = own
    if through == "hetero":  # the CPU runs the operators that the device lacks
        compiled_for = f"HETERO:{own}" if kind == "cpu" else f"HETERO:{own},CPU"
    return Target(_our_name(kind, at), own, compiled_for, _property(core, own, "FULL_DEVICE_NAME"))


def _our_name(kind: str, index: str) -> str:
    return f"{kind}:{index}" if index and kind == "gpu" else kind


def _list_indices(core: Any, kind: str) -> list[str]:
    with suppress(RuntimeError):  # the plugin, or a library that it needs, is not installed
        return list(map(str, core.get_property(NAMES[kind], "AVAILABLE_DEVICES")))
    return []


def _property(core: Any, device: str, name: str) -> str:
    with suppress(RuntimeError):
        return str(core.get_property(device, name)).strip()
    return ""


def identify(core: Any, target: Target) -> dict[str, str]:
    return {name: text for name in IDENTITY.split() if (text := _property(core, target.own, name))}


def precisions_of(core: Any, own: str) -> tuple[str, ...]:
    capabilities = core.get_property(own, "OPTIMIZATION_CAPABILITIES")
    return tuple(ours for ours, name in CAPABILITIES.items() if name in capabilities)


def list_offers() -> list[Offer]:
    """Return the Intel GPUs and NPUs that OpenVINO lists, or why it lists none of a kind."""
    offers = []
    with translated("openvino", ASKING):
        core = open_core()
        for kind in ("gpu", "npu"):
            listed = _list_indices(core, kind)
            for index in listed:
                target = find_target(core, EngineOptions(device=f"{kind}:{index or 0}"))
                capabilities = precisions_of(core, target.own)
                offers.append(
                    Offer(f"--device {target.device}", target.full_name, True, capabilities)
                )
            if not listed:
                offers.append(Offer(f"--device {kind}", why_missing(kind), usable=False))
    return offers


def refusal(precision: str, device: str) -> str | None:
    """Return why a device lacks a precision. (OpenVINO would silently use another precision.)"""
    try:
        with translated("openvino", ASKING):
            core = open_core()
            target = find_target(core, EngineOptions(device=device))
            capabilities = precisions_of(core, target.own)
    except EngineError as error:
        return str(error).removeprefix("engine openvino: ")
    if precision in capabilities:
        return None
    if device in ("auto", "cpu"):
        return (
            "this CPU has no fp16 arithmetic (AVX512-FP16), so OpenVINO would use another type; "
            f"use --precision {'bf16' if 'bf16' in capabilities else 'int8'}"
        )
    return (
        f"{target.full_name} runs {' and '.join(capabilities)}; use --precision {capabilities[0]}"
    )


def unused_device() -> str | None:
    unused_devices = [(kind, files[0]) for kind in ("gpu", "npu") if (files := device_files(kind))]
    which = " and ".join(f"an Intel {kind.upper()} ({file})" for kind, file in unused_devices)
    device = " or ".join(f"--device {kind}" for kind, _ in unused_devices)
    unused = f"this machine has {which}, which --device auto does not use"
    use = f"--engine openvino {device} does (see detect-video doctor)"
    return f"{unused}; {use}" if unused_devices else None
