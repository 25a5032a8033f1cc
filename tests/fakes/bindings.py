"""Import TensorRT's real bindings without a GPU, to compare their names and signatures with the
fakes. Stubs replace the libraries that the bindings load.

scripts/test puts the wheels (1.3 MB) into .venv/wheels. The bindings need ten C symbols, which are
never called.
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

WHEELS = Path(os.environ.get("DETECT_VIDEO_WHEELS", Path(sys.prefix) / "wheels"))
BINDINGS = {10: "tensorrt_cu12_bindings", 11: "tensorrt_cu13_bindings"}
RTX = 1  # major version of TensorRT for RTX, whose whole package is installed
# What the bindings import from libnvinfer, libnvinfer_plugin and libnvonnxparser.
SYMBOLS = (
    "createInferBuilder_INTERNAL createInferRefitter_INTERNAL "
    "createInferRuntime_INTERNAL createNvOnnxParserRefitter_INTERNAL "
    "createNvOnnxParser_INTERNAL getBuilderPluginRegistry getNvOnnxParserVersion "
    "getPluginRegistry initLibNvInferPlugins getInferLibVersion"
).split()
LIBRARIES = ("nvinfer", "nvinfer_plugin", "nvonnxparser")


def find_wheel(pattern: str) -> Path:
    tags = (f"cp{sys.version_info.major}{sys.version_info.minor}-", "-py3-", "py2.py3")
    wheels = sorted(
        file for file in WHEELS.glob(f"{pattern}-*.whl") if any(tag in file.name for tag in tags)
    )
    if not wheels:
        pytest.skip(f"no wheel {pattern} in {WHEELS}: scripts/test could not download it")
    return wheels[-1]


def unpack_bindings(major: int, folder: Path) -> dict[str, str]:
    """Unpack the bindings, make the stubs, and return environment variables to find both."""
    with zipfile.ZipFile(find_wheel(BINDINGS[major])) as archive:
        archive.extractall(folder)
    source = folder / "stub.c"
    source.write_text("".join(f"void *{name}(void) {{ return 0; }}\n" for name in SYMBOLS))
    for library in LIBRARIES:
        name = f"lib{library}.so.{major}"
        command = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(folder / name)]
        subprocess.run([*command, str(source)], check=True)
    return {**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(folder)}
