"""Decoders and encoders: what cv2 and PyAV bring, and packages of cv2 that overwrite each other."""

from __future__ import annotations

import importlib.metadata
from typing import Any

# What each is for; the job of every day needs the first two.
ENCODERS = {"libx264": "the annotated video", "aac": "its sound, where it cannot be copied"}
DECODERS = ("h264", "hevc", "vp9", "av1", "mpeg4", "mjpeg")
CV2_PACKAGES = (
    "opencv-python", "opencv-python-headless", "opencv-contrib-python", "opencv-contrib-python-headless",
)  # fmt: skip


def codecs() -> dict[str, Any]:
    installed = [name for name in CV2_PACKAGES if _version(name)]
    found: dict[str, Any] = {"cv2": _cv2(), "av": _av(), "cv2_packages": installed, "warnings": []}
    if len(installed) > 1:
        found["warnings"].append(
            f"{' and '.join(installed)} are both installed and overwrite each other's files: "
            f"pip uninstall -y {' '.join(installed)} && pip install opencv-python-headless"
        )
    for library in ("cv2", "av"):
        if found[library]["error"]:
            found["warnings"].append(found[library]["error"])
    missing = [name for name, there in found["av"]["encoders"].items() if not there]
    if missing:
        found["warnings"].append(f"PyAV has no encoder {' and '.join(missing)}: pip install --force-reinstall av")
    return found


def _cv2() -> dict[str, Any]:
    try:
        import cv2

        backends = [cv2.videoio_registry.getBackendName(one) for one in cv2.videoio_registry.getStreamBackends()]
        return {"version": cv2.__version__, "backends": backends, "threads": cv2.getNumThreads(), "error": None}
    except Exception as error:  # a missing libGL is an ImportError, a broken wheel may be anything
        text = " ".join(str(error).split())
        return {"version": None, "backends": [], "error": f"cv2 cannot be imported: {text}; "
                "pip install opencv-python-headless"}  # fmt: skip


def _av() -> dict[str, Any]:
    try:
        import av
    except Exception as error:
        text = " ".join(str(error).split())
        return {"version": None, "encoders": {}, "decoders": {}, "error": f"PyAV cannot be imported: {text}; "
                "pip install av"}  # fmt: skip
    return {
        "version": av.__version__,
        "ffmpeg": {name: ".".join(map(str, number)) for name, number in av.library_versions.items()},
        "encoders": {name: _there(name, "w") for name in ENCODERS},
        "decoders": {name: _there(name, "r") for name in DECODERS},
        "error": None,
    }


def _there(name: str, mode: str) -> bool:
    import av

    try:
        av.Codec(name, mode)
    except ValueError:  # UnknownCodecError
        return False
    return True


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
