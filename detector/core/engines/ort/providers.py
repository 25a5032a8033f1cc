"""Run ONNX Runtime with an execution provider chosen by ``--engine-options provider=NAME``. The CPU
runs nodes that the provider does not support. If it supports no node, we raise an error."""

from __future__ import annotations

from collections import Counter
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
OTHER_NAMES = {"directml": "dml", "trt": "tensorrt"}
DEVICES = ("cpu", "cuda")  # providers to select by --device, not by provider=
ON_CPU = ("azure", "acl", "dnnl", "openvino", "xnnpack")
PACKAGED = ("cann", "migraphx", "openvino", "qnn")
# Provider -> suffix of the PyPI package (onnxruntime-SUFFIX) that has it.
PACKAGES = {"tensorrt": "gpu", "dml": "directml", **{name: name for name in PACKAGED}}


class Provider(NamedTuple):
    name: str  # our name: "openvino"
    full: str


class OpenProvider(OpenOrt):
    """An open engine with a provider that the user named. If it cannot start, we raise an error."""

    @classmethod
    def layer_profiler(cls, network: Network, options: EngineOptions) -> OrtLayerProfiler:
        provider = options.own["provider"]
        raise EngineError(
            f"engine ort: no layer times: provider {provider} runs layers in one piece"
        )

    def execution(self) -> list[LayerExecution]:
        return []  # ONNX Runtime cannot save the optimised graph of a provider

    def _memory(self) -> str:
        # For all providers but TensorRT, arrays stay on the host: ONNX Runtime copies them.
        return self.device if self._provider.name == "tensorrt" else "cpu"

    def _open(self, network: Network, options: EngineOptions) -> tuple[Any, str]:
        import onnxruntime

        self._provider = provider = find_provider(options)
        self.device_name = provider.full
        onnxruntime.set_default_logger_severity(SILENT)
        settings = settings_of(self.threads)
        settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        on_nvidia = provider.name == "tensorrt"
        index = index_of(options.device) if on_nvidia else 0
        with translated("ort", f"start provider {provider.name}"):
            providers: list[Any] = [provider.full, CPU]
            if on_nvidia:
                gpu = {"device_id": index}
                providers = [(provider.full, gpu), (CUDA, gpu | {"use_tf32": 0}), CPU]
            elif provider.name == "openvino":
                own = {"num_of_threads": self.threads, "num_streams": self.concurrency}
                providers = [(provider.full, {"device_type": "CPU", **own}), CPU]
            session = open_session(network, settings, providers)
            self.notes.append(note_of(session, provider))
        if on_nvidia:
            return session, f"cuda:{index}"
        return session, "cpu" if provider.name in ON_CPU else provider.name


def find_provider(options: EngineOptions) -> Provider:
    """Raises UsageError for a wrong provider or device, EngineError for one that cannot run."""
    import onnxruntime

    requested = options.own["provider"]
    name = requested.lower().removesuffix(END.lower())
    name = OTHER_NAMES.get(name, name)
    known = {_short(full): full for full in onnxruntime.get_all_providers()}
    available = sorted(map(_short, onnxruntime.get_available_providers()))
    kind = options.device.partition(":")[0]
    wrong = None
    if name not in known:
        wrong = f"unknown; this build of onnxruntime has {', '.join(available)}"
    elif name in DEVICES:
        wrong = f"use --device {name}"
    elif kind not in ("auto", "cuda" if name == "tensorrt" else "cpu"):
        wrong = f"it does not run on --device {kind}; omit --device"
    if wrong is not None:
        raise UsageError(f"--engine-options provider={requested}: {wrong}")
    reason = None
    if name not in available:
        cure = "build onnxruntime with it"
        if name in PACKAGES:
            package = f"onnxruntime-{PACKAGES[name]}"
            cure = f"to get it: pip uninstall onnxruntime, then pip install {package}"
        reason = f"this build of onnxruntime has {', '.join(available)}; {cure}"
    if options.precision == "int8" and name == "tensorrt":
        reason = "it misreads the unsigned numbers of ort's int8; use --engine trt"
    if reason is not None:
        raise EngineError(f"engine ort: provider {name}: {reason}")
    return Provider(name, known[name])


def _short(full: str) -> str:
    return full.removesuffix(END).lower()


def note_of(session: Any, provider: Provider) -> str:
    """Return a line on the nodes that the provider runs. Raises EngineError if it runs none."""
    about = f"provider {provider.name}"
    if provider.full not in session.get_providers():
        raise EngineError(
            f"engine ort: {about} did not start, so ONNX Runtime would run on the CPU: the "
            "provider's library, driver or device is missing"
        )
    try:
        parts = session.get_provider_graph_assignment_info()
    except (AttributeError, RuntimeError):
        return (
            f"engine ort: this onnxruntime does not report which nodes {about} runs and which the "
            "CPU runs; onnxruntime 1.24 does"
        )
    counts, other_kinds = Counter[str](), Counter[str]()
    for part in parts:
        nodes = part.get_nodes()
        counts[part.ep_name] += len(nodes)
        if part.ep_name != provider.full:
            other_kinds.update(node.op_type for node in nodes)
    own, total = counts[provider.full], counts.total()
    if own == 0:
        raise EngineError(
            f"engine ort: {about} runs none of the network's {total} nodes; omit provider="
        )
    if own == total:
        return Background(f"engine ort: {about} runs all {total} nodes")
    others = " and ".join(_short(name) for name in counts if name != provider.full)
    kinds = ", ".join(f"{count} {kind}" for kind, count in other_kinds.most_common(5))
    return (
        f"engine ort: {about} runs {own} of {total} nodes; {others} runs the others ({kinds}), and "
        "tensors are copied between them"
    )


def list_offers() -> list[Offer]:
    """Return the providers in this build that can run our graphs (see ``Engine.offers``)."""
    import onnxruntime

    return [
        Offer(f"--engine-options provider={_short(full)}", full)
        for full in onnxruntime.get_available_providers()
        if full not in (CPU, f"Azure{END}")  # Azure sends inputs to a web service
    ]
