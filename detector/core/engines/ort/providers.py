"""ONNX Runtime's execution providers: ``--engine-options provider=NAME``, only if named. The CPU
runs nodes that a provider does not support, so a provider that runs no node is an error."""

from __future__ import annotations

import importlib
import threading
from collections import Counter
from importlib.util import find_spec
from typing import Any, NamedTuple

from detector.core.engines.base import EngineOptions, LayerExecution, Offer, translated
from detector.core.engines.ort.abilities import CPU, CUDA, index_of
from detector.core.engines.ort.engine import (
    SILENT,
    OpenOrt,
    OrtLayerProfiler,
    open_session,
    settings_of,
)
from detector.core.errors import EngineError, UsageError
from detector.core.models.base import Network
from detector.core.types import Background

END = "ExecutionProvider"
RTX = "NvTensorRTRTXExecutionProvider"
SHORT = {RTX: "rtx"}
OTHER_NAMES = {"directml": "dml", "trt": "tensorrt", "nvtensorrtrtx": "rtx"}
DEVICES = ("cpu", "cuda")  # the engine itself runs these
NVIDIA = ("tensorrt", "rtx")
ON_CPU = ("azure", "acl", "dnnl", "openvino", "xnnpack")
PLUGIN = "onnxruntime_ep_nv_tensorrt_rtx"
# PyPI's packages with a provider are called onnxruntime-NAME, except two.
PACKAGED = ("cann", "migraphx", "openvino", "qnn")
BRINGS = {"tensorrt": "gpu", "dml": "directml", **{name: name for name in PACKAGED}}
_registered: set[str] = set()  # libraries of plugins, each registered once per process
_registering = threading.Lock()


class Provider(NamedTuple):
    name: str  # our name: "openvino"
    full: str


class OpenProvider(OpenOrt):
    """An open engine with a provider that the user named, which is never replaced."""

    @classmethod
    def layer_profiler(cls, network: Network, options: EngineOptions) -> OrtLayerProfiler:
        named = options.own["provider"]
        raise EngineError(f"engine ort: no layer times: provider {named} runs layers in one piece")

    def execution(self) -> list[LayerExecution]:
        return []  # its optimised graph cannot be saved

    def _memory(self) -> str:
        # For the others, ONNX Runtime accepts arrays on the host, and copies them itself.
        return self.device if self._provider.name == "tensorrt" else "cpu"

    def _open(self, network: Network, options: EngineOptions) -> tuple[Any, str]:
        import onnxruntime

        self._provider = named = find_provider(options)
        self.device_name = named.full
        onnxruntime.set_default_logger_severity(SILENT)
        settings = settings_of(self.threads)
        settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        index = index_of(options.device) if named.name in NVIDIA else 0
        with translated("ort", f"start provider {named.name}"):
            providers: list[Any] | None = [named.full, CPU]
            if named.name == "rtx":
                providers = None
                settings.add_provider_for_devices([_rtx_device(index)], {})
            elif named.name == "tensorrt":
                gpu = {"device_id": index}
                providers = [(named.full, gpu), (CUDA, gpu | {"use_tf32": 0}), CPU]
            elif named.name == "openvino":
                own = {"num_of_threads": self.threads, "num_streams": self.concurrency}
                providers = [(named.full, {"device_type": "CPU", **own}), CPU]
            session = open_session(network, settings, providers)
            self.notes.append(note_of(session, named))
        if named.name in NVIDIA:
            return session, f"cuda:{index}"
        return session, "cpu" if named.name in ON_CPU else named.name


def find_provider(options: EngineOptions) -> Provider:
    """Raise UsageError for an unknown provider or wrong device, EngineError for one missing."""
    import onnxruntime

    given = options.own["provider"]
    name = given.lower().removesuffix(END.lower())
    name = OTHER_NAMES.get(name, name)
    known = {_short(full): full for full in [*onnxruntime.get_all_providers(), RTX]}
    here = sorted(map(_short, onnxruntime.get_available_providers()))
    kind = options.device.partition(":")[0]
    wrong = None
    if name not in known:
        wrong = f"unknown; this build of onnxruntime has {', '.join(here)}, and the plugin rtx"
    elif name in DEVICES:
        wrong = f"use --device {name}"
    elif kind not in ("auto", "cuda" if name in NVIDIA else "cpu"):
        wrong = f"it does not run on --device {kind}; omit --device"
    if wrong is not None:
        raise UsageError(f"--engine-options provider={given}: {wrong}")
    reason = why_no_rtx() if name == "rtx" else None
    if options.precision == "int8" and name in NVIDIA:  # tensorrt_rtx 1.7 silently took u8 for s8
        instead = "rtx" if name == "rtx" else "trt"
        reason = f"it misreads the unsigned numbers of ort's int8; use --engine {instead}"
    if name not in (*here, "rtx"):
        cure = "pip uninstall onnxruntime, then pip install onnxruntime-" + BRINGS.get(name, "")
        cure = cure if name in BRINGS else "a build of your own"
        reason = f"this build of onnxruntime has {', '.join(here)}; what brings it: {cure}"
    if reason is not None:
        raise EngineError(f"engine ort: provider {name}: {reason}")
    return Provider(name, known[name])


def _short(full: str) -> str:
    return SHORT.get(full, full.removesuffix(END).lower())


def why_no_rtx() -> str | None:
    """Return why RTX is unusable, before its import, which loads 300 MB and creates links."""
    import onnxruntime

    from detector.core.engines.trt import driver

    if not hasattr(onnxruntime, "register_execution_provider_library"):
        return "it needs onnxruntime 1.24 or newer"
    if find_spec(PLUGIN) is None:
        return "pip install onnxruntime-ep-nv-tensorrt-rtx-cu13"
    return driver.absent()


def _rtx_device(index: int) -> Any:
    import onnxruntime

    with _registering:
        if RTX not in _registered:
            plugin = importlib.import_module(PLUGIN)
            onnxruntime.register_execution_provider_library(RTX, plugin.get_library_path())
            _registered.add(RTX)
    found = [one for one in onnxruntime.get_ep_devices() if one.ep_name == RTX]
    if index >= len(found):
        raise EngineError(
            f"engine ort: provider rtx: it lists {len(found)} GPUs that it runs on, and none "
            f"of number {index}; it needs RTX 30 or newer"
        )
    return found[index]


def note_of(session: Any, provider: Provider) -> str:
    """Return a line on the nodes that the provider runs. Raises EngineError if it runs none."""
    about = f"provider {provider.name}"
    if provider.full not in session.get_providers():
        raise EngineError(
            f"engine ort: {about} did not start, and ONNX Runtime would go on on the CPU: its "
            "library, its driver or its device is missing"
        )
    try:
        parts = session.get_provider_graph_assignment_info()
    except (AttributeError, RuntimeError):
        return (
            f"engine ort: this onnxruntime does not tell which nodes {about} runs and which the "
            "CPU; version 1.24 does"
        )
    counts, left = Counter[str](), Counter[str]()
    for part in parts:
        nodes = part.get_nodes()
        counts[part.ep_name] += len(nodes)
        if part.ep_name != provider.full:
            left.update(node.op_type for node in nodes)
    own, total = counts[provider.full], counts.total()
    if own == 0:
        raise EngineError(
            f"engine ort: {about} runs none of the network's {total} nodes; omit provider="
        )
    if own == total:
        return Background(f"engine ort: {about} runs all {total} nodes")
    others = " and ".join(_short(name) for name in counts if name != provider.full)
    kinds = ", ".join(f"{count} {kind}" for kind, count in left.most_common(5))
    return (
        f"engine ort: {about} runs {own} of {total} nodes; {others} runs the others ({kinds}), and "
        "what they exchange is copied"
    )


def list_offers() -> list[Offer]:
    """Return what this build lists that can run part of our graphs, see ``Engine.offers``."""
    import onnxruntime

    there = [one for one in onnxruntime.get_available_providers() if one != CPU]
    found = [
        Offer(f"--engine-options provider={_short(full)}", full)
        for full in there
        if full != f"Azure{END}"  # it sends inputs to a web service
    ]
    if find_spec(PLUGIN) is not None:
        reason = why_no_rtx()
        found.append(Offer("--engine-options provider=rtx", reason or RTX, usable=reason is None))
    return found
