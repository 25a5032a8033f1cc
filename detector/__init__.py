"""detect-video: find objects in a video, and see where every millisecond went.

    from detector import Detector

    with Detector(conf=0.4) as detector:
        for frame, detections in detector.stream("in.mp4"):
            ...

Importing this package imports neither torch nor cv2.
"""

from __future__ import annotations

import os

from detector.core import __version__

# Importing typing here would delay the handling of signals (core/run/signals.py).
TYPE_CHECKING = False
if TYPE_CHECKING:  # type checkers and editors see the real types instead of Any
    from detector.core.api import Detector
    from detector.core.api.results import Detections
    from detector.core.errors import DetectVideoError
    from detector.core.types import Frame

# Without this, ONNX Runtime queues telemetry and writes a device id into the user's cache as soon
# as it is imported, before we can call its disable_telemetry_events().
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__all__ = ["DetectVideoError", "Detections", "Detector", "Frame", "__version__"]

_MODULES = {
    "DetectVideoError": "detector.core.errors",
    "Detections": "detector.core.api.results",
    "Detector": "detector.core.api",
    "Frame": "detector.core.types",
}


if not TYPE_CHECKING:  # hidden from type checkers, which would otherwise accept any name

    def __getattr__(name):
        if name not in _MODULES:
            raise AttributeError(f"module 'detector' has no attribute {name!r}")
        import importlib

        return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    """List the public names for tab completion, even if they are not imported yet."""
    return sorted({*globals(), *__all__} - {"TYPE_CHECKING", "annotations", "os"})
