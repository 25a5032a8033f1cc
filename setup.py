"""Packaging. Tool settings live in pyproject.toml; what CI ran is pinned in constraints.txt."""

import re
import sys
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
ABOUT = dict(re.findall(r'__(\w+)__ = "(.+)"', (ROOT / "detector/core/__init__.py").read_text()))
ADDRESS = ABOUT["address"]
# A package index shows the README without the checkout: its links and pictures get full addresses.
README = (ROOT / "README.md").read_text(encoding="utf-8")
README = re.sub(r"(!\[[^]]*\]\()(?!https:)", rf"\1{ADDRESS}/raw/main/", README)
README = re.sub(r"(?<!!)(\[[^]]*\]\()(?!https:)", rf"\1{ADDRESS}/blob/main/", README)
# pip install -e: one .pth with the checkout's path, which type checkers and editors follow. For a
# package from elsewhere setuptools writes a finder, which they do not run; the checkout's cfg/ is
# found without it.
ELSEWHERE = {} if "editable_wheel" in sys.argv else {"detector.cfg": "cfg"}

setup(
    name="detect-video",
    version=ABOUT["version"],
    description="Detect objects in a video on interchangeable engines, and see where every "
    "millisecond went",
    long_description=README,
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE", "NOTICE"],
    author="The detect-video authors",
    url=ADDRESS,
    project_urls={
        "Documentation": f"{ADDRESS}/tree/main/docs",
        "Changelog": f"{ADDRESS}/blob/main/CHANGELOG.md",
        "Issues": f"{ADDRESS}/issues",
        "Security": f"{ADDRESS}/blob/main/SECURITY.md",
    },
    keywords="object-detection video yolo onnx openvino tensorrt profiling tracking counting rtsp",
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Programming Language :: Python :: 3.14",
        "Topic :: Multimedia :: Video",
        "Topic :: Scientific/Engineering :: Image Recognition",
        "Typing :: Typed",
    ],
    python_requires=">=3.11",
    packages=[*find_packages(include=["detector", "detector.*"]), *ELSEWHERE],
    package_dir=ELSEWHERE or {"": "."},
    package_data={
        "detector": ["py.typed"],
        "detector.lab.report.html": ["page/*"],
        "detector.core.sinks.player": ["*.html"],
        "detector.live.page": ["site/*"],
        "detector.tracks": ["site/*"],
        "detector.cfg": [
            "*.yaml",
            "models/*.yaml",
            "families/*.yaml",
            "darknet/*.cfg",
            "yolo/*.yaml",
            "names/*.names",
            "weights/*.f16",
            "weights/*.calibration",
            "mappings/*.yaml",
        ],
    },
    # Lower bounds: the tests ran with exactly these (scripts/bounds_check; the table stands in
    # docs/versions.md). PyAV below 17.1 has no display rotation and no whole dispositions.
    install_requires=[
        "numpy>=2.0",  # cv2 4.13 asks for it
        # Headless: the same cv2 without libGL, which bare servers lack.
        "opencv-python-headless>=4.13",
        "click>=8.1",
        "pyyaml>=6.0",
        # 0.2.11 has no Domain.mark; 0.2.12 shares one set of attributes between threads, so that
        # numbers of frames get mixed.
        "nvtx>=0.2.13",
        "onnxruntime>=1.20",
        "onnx>=1.17",
        # Damage is heard where cv2's FFmpeg and PyAV's have one major version: 8 in cv2 from 4.13
        # and in PyAV 17 and 18. PyAV 19 has 9, and no cv2 yet.
        "av>=17.1,<19",
        "rich>=13.7",
        # The documents that a run leaves: typed, checked when they are read, described by a JSON
        # Schema.
        "msgspec>=0.19",
        # Web servers. Below 2.3 no thread can end what another one reads (HTTPResponse.shutdown).
        "urllib3>=2.3",
    ],
    extras_require={
        "torch": ["torch>=2.4"],
        "openvino": ["openvino>=2024.6"],
        "eval": ["faster-coco-eval>=1.6.5"],
        # TensorRT's libraries come from NVIDIA's own index, through a placeholder on PyPI. Of the
        # packages that move bytes to a GPU, cuda-python is the one with wheels; pycuda is built
        # where it is installed. cuda-python below 12.9.1 holds the GIL while it waits for the GPU.
        "trt": ["tensorrt>=10.15", "cuda-python>=12.9.1"],
        # TensorRT for RTX: libraries from PyPI; plans are built without a GPU. For a driver of
        # CUDA 12: pip install tensorrt-rtx-cu12 instead.
        "rtx": ["tensorrt-rtx-cu13>=1.7", "cuda-python>=12.9.1"],
        "pycuda": ["pycuda>=2024.1"],
        "cuda": ["cuda-python>=12.9.1"],
        # --font: letters of any script, joined and in their order.
        "font": ["pillow>=10.1"],
        # The font inside --save overlay: Lato, under the SIL Open Font License, which goes with it.
        "overlay": ["font-lato>=0.1"],
        "profile": ["pyinstrument>=4.6", "nvidia-ml-py>=12.535"],
        # The page of a run, and events by MQTT (paho under its BSD licence).
        "serve": ["starlette>=0.40", "uvicorn>=0.30", "prometheus-client>=0.20"],
        "mqtt": ["paho-mqtt>=2.1"],
        # batch: one Parquet dataset of all detections.
        "batch": ["pyarrow>=17.0"],
        # batch: sources and results in object stores.
        "s3": ["s3fs>=2026.9"],
        "gs": ["gcsfs>=2026.10"],
        "http": [],  # web servers need nothing more; some may still ask for it
        # batch --on ray, with Ray's client for ray://HOST:PORT.
        "ray": ["ray[client]>=2.60"],
        # Run trackers of --track. The tests take mlflow-skinny, the client with fewer packages.
        "mlflow": ["mlflow>=2.17"],
        "tensorboard": ["tensorboard>=2.21"],
        # The site (scripts/docs). Material is in maintenance: it ends in May 2027.
        "docs": ["mkdocs-material>=9.7", "mkdocstrings[python]>=1.0"],
        # notebooks/: run by Jupyter, or without a page by nbclient.
        "notebook": ["nbclient>=0.10.2", "ipykernel>=7.0"],
        # Coverage-guided fuzzing in scripts/attack. It has wheels for Linux only.
        "fuzz": ["atheris>=3.0"],
        "test": [
            "pytest>=9.0",  # faulthandler_exit_on_timeout
            "pytest-timeout>=2.3",
            "pytest-xdist>=3.6",
            "hypothesis>=6.100",
            "ruff>=0.17.5",  # with each version it finds something else
            "mypy>=2.4.1",  # and so does this
            "pyright>=1.1.414",  # what editors take; from here on its wheel needs no download
            "types-PyYAML>=6.0.12.20261113",  # and this: of the first 6.0.12 mypy finds fault
            "moto>=5.2",  # a store of S3 on this machine; its server needs the next two
            "flask>=3.1",
            "flask-cors>=6.0",
            "duckdb>=1.2",  # asks the dataset of batch what docs/batch.md asks
        ],
    },
    entry_points={"console_scripts": ["detect-video = detector.__main__:main"]},
)
