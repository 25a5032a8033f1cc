"""Store a compiled model as a file. Compiling kernels for a GPU at each start would take up to a
minute. We do not use OpenVINO's own cache (CACHE_DIR), which would load a forged file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detector.core.engines._built.proof import file_digest
from detector.core.engines.base import BuildProgress, EngineOptions, translated
from detector.core.engines.openvino.compiling import Compilation, compile_graph, plan_compilation
from detector.core.engines.openvino.devices import ASKING, identify, open_core
from detector.core.errors import EngineError
from detector.core.models.base import Network


def key_here(network: Network, options: EngineOptions) -> dict[str, Any]:
    """Return all that a compiled model depends on: graph, OpenVINO, device, driver, settings."""
    import openvino

    assert network.path is not None  # the graph has been exported
    with translated("openvino", ASKING):
        core = open_core()
        compilation = plan_compilation(network, options, options.concurrency, core)
        return {
            "graph": file_digest(Path(network.path)),
            "openvino": openvino.__version__,
            "device": compilation.target.compiled_for,
            "identity": identify(core, compilation.target),
            "drivers": loaded_drivers(),
            "settings": {name: str(value) for name, value in compilation.settings(core).items()},
            # A digest of the names of nodes that stay float32.
            "stays": hashlib.sha256(" ".join(sorted(compilation.stays)).encode()).hexdigest()[:12],
        }


def build_here(
    network: Network, options: EngineOptions, target: Path, progress: BuildProgress
) -> Mapping[str, Any]:
    core = open_core()
    compilation = plan_compilation(network, options, options.concurrency, core)
    doing = f"compiling {network.name} for {compilation.target.full_name}"
    if not progress(doing, 0, 1):
        raise EngineError(f"engine openvino: {doing} was stopped")
    with translated("openvino", f"compile the graph for {compilation.target.full_name}"):
        exported = compile_graph(core, compilation).export_model()  # OpenVINO < 2025: bytes
        target.write_bytes(exported if isinstance(exported, bytes) else exported.getvalue())
    progress(doing, 1, 1)
    return {"device": compilation.target.device, "device_name": compilation.target.full_name}


def read_compiled(core: Any, compilation: Compilation, path: str) -> Any:
    """Load a model that ``build_here`` wrote and ``store`` has checked. Raises EngineError."""
    name = f"{path}, which this OpenVINO compiled (delete it, or give --engine-options cache=0)"
    with translated("openvino", f"load {name}"):
        # Give the settings again: the file lacks some, such as the type of float layers.
        return core.import_model(
            Path(path).read_bytes(), compilation.target.compiled_for, compilation.settings(core)
        )


DRIVERS = ("libigdrcl", "libze_intel", "libigc", "libigdfcl")


def loaded_drivers(maps: Path = Path("/proc/self/maps")) -> dict[str, list[int]]:
    """Return file -> [size, time] of Intel's drivers in this process. An update changes both."""
    try:
        lines = maps.read_text().splitlines()
        paths = sorted({Path(line.split(maxsplit=5)[-1]) for line in lines if "/" in line})
        drivers = [(path, path.stat()) for path in paths if path.name.startswith(DRIVERS)]
    except OSError:  # ``maps`` cannot be read, or a driver was replaced after it was loaded
        return {}
    return {str(path): [status.st_size, status.st_mtime_ns] for path, status in drivers}
