"""TensorRT's real bindings without a GPU: imported over stub libraries, and their names and
signatures as the fakes take them.

scripts/test puts the wheels (1.3 MB) into .venv/wheels. They need ten C symbols, and nothing behind
those is called.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zipfile
import zlib
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

WHEELS = Path(os.environ.get("DETECT_VIDEO_WHEELS", Path(sys.prefix) / "wheels"))
BINDINGS = {10: "tensorrt_cu12_bindings", 11: "tensorrt_cu13_bindings"}
RTX = 1  # the major of TensorRT for RTX, which is installed whole
# What the bindings import from libnvinfer, libnvinfer_plugin and libnvonnxparser.
SYMBOLS = [
    "createInferBuilder_INTERNAL",
    "createInferRefitter_INTERNAL",
    "createInferRuntime_INTERNAL",
    "createNvOnnxParserRefitter_INTERNAL",
    "createNvOnnxParser_INTERNAL",
    "getBuilderPluginRegistry",
    "getNvOnnxParserVersion",
    "getPluginRegistry",
    "initLibNvInferPlugins",
    "getInferLibVersion",
]
LIBRARIES = ("nvinfer", "nvinfer_plugin", "nvonnxparser")
# pybind11 writes signatures into docstrings: the first line, or a numbered list of overloads.
READ = r"""
import json, re, sys
try:
    import tensorrt_bindings as trt
except ImportError:
    import tensorrt_rtx as trt

def signatures(name, thing):
    text = (getattr(thing, "__doc__", None) or "").strip()
    number = r"\d+\. " if "Overloaded function." in text else r"\A"
    found = re.findall(rf"^{number}({re.escape(name)}\(.*)$", text, re.M)
    prefixes = r" at 0x[0-9a-f]+|\btensorrt(_rtx)?_bindings\.tensorrt(_rtx)?\."
    return [re.sub(prefixes, "", one) for one in found]

api = {"version": trt.__version__, "classes": {}, "enums": {}, "aliases": {}}
seen = set()

def visit(path, kind):
    if kind in seen or kind.__name__ != path.split(".")[-1]:
        if path != kind.__qualname__:
            api["aliases"][path] = kind.__qualname__
        return
    seen.add(kind)
    if hasattr(kind, "__members__"):
        members = {name: int(value) for name, value in kind.__members__.items()}
        api["enums"][path] = {"members": members}
        return
    bases = [one.__name__ for one in kind.__bases__]
    made = api["classes"][path] = {"bases": bases, "methods": {}, "properties": {}}
    made["init"] = signatures("__init__", vars(kind).get("__init__"))
    for name, thing in vars(kind).items():
        if isinstance(thing, property):
            made["properties"][name] = {"settable": thing.fset is not None}
        elif isinstance(thing, type):
            if not name.startswith("_"):
                visit(f"{path}.{name}", thing)
        elif name not in ("__init__", "__eq__", "__ne__", "__repr__", "__str__"):
            sigs = signatures(name, getattr(thing, "__func__", thing))
            made["methods"][name] = {"sigs": sigs}

for name in sorted(dir(trt)):
    if not name.startswith("_") and isinstance(getattr(trt, name), type):
        visit(name, getattr(trt, name))
json.dump(api, sys.stdout)
"""


def find_wheel(pattern: str) -> Path:
    """The newest wheel of that name for this Python, or for any."""
    tags = (f"cp{sys.version_info.major}{sys.version_info.minor}-", "-py3-", "py2.py3")
    found = sorted(
        file for file in WHEELS.glob(f"{pattern}-*.whl") if any(tag in file.name for tag in tags)
    )
    if not found:
        pytest.skip(f"no wheel {pattern} in {WHEELS}: scripts/test could not download it")
    return found[-1]


def unpack_bindings(major: int, folder: Path) -> dict[str, str]:
    """The environment in which a child imports ``tensorrt_bindings`` from the folder."""
    with zipfile.ZipFile(find_wheel(BINDINGS[major])) as archive:
        archive.extractall(folder)
    source = folder / "stub.c"
    source.write_text("".join(f"void *{name}(void) {{ return 0; }}\n" for name in SYMBOLS))
    for library in LIBRARIES:
        name = f"lib{library}.so.{major}"
        command = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(folder / name)]
        subprocess.run([*command, str(source)], check=True)
    return {**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(folder)}


def rtx_release() -> str:
    """Which TensorRT for RTX is installed. Skips where none is."""
    for name in ("tensorrt_rtx_cu13", "tensorrt_rtx_cu12"):
        with suppress(PackageNotFoundError):
            return f"{name}-{version(name)}"
    pytest.skip("tensorrt_rtx is not installed")


@cache  # thousands of signatures, for each of hundreds of fake machines
def read_api(major: int) -> dict[str, Any]:
    """Classes, enums and aliases of a real release, with the signatures of methods.

    Reading takes seconds, so the answer stays beside the wheels.
    """
    release = rtx_release() if major == RTX else find_wheel(BINDINGS[major]).stem
    kept = WHEELS / f"{release}-{zlib.crc32(READ.encode())}.json"
    if not kept.is_file():
        WHEELS.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=WHEELS) as folder:
            environment = None if major == RTX else unpack_bindings(major, Path(folder))
            made = Path(folder, "api.json")
            command = [sys.executable, "-c", READ]
            with made.open("w") as file:
                subprocess.run(command, env=environment, stdout=file, check=True, timeout=120)
            made.replace(kept)
    api: dict[str, Any] = json.loads(kept.read_text())
    return api
