"""A stand-in for the library supervision: its class Detections, with the real fields and checks.

``SIGNATURE`` was recorded from supervision 0.31.2 (November 2026): the parameters of
``supervision.Detections``, and whether each has a default. In 0.26.1, the parameters are the same.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

VERSION = "0.31.2"
SIGNATURE = {
    "xyxy": False,
    "mask": True,
    "confidence": True,
    "class_id": True,
    "tracker_id": True,
    "data": True,
    "metadata": True,
}


@dataclass
class Detections:
    xyxy: Any
    mask: Any = None
    confidence: Any = None
    class_id: Any = None
    tracker_id: Any = None
    data: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the fields like ``supervision.validators``."""
        if not isinstance(self.xyxy, np.ndarray) or self.xyxy.shape[1:] != (4,):
            raise ValueError("xyxy must be a 2D np.ndarray with shape (_, 4)")
        if not np.issubdtype(self.xyxy.dtype, np.number) or not np.isfinite(self.xyxy).all():
            raise ValueError("xyxy must hold finite numbers")
        n = len(self.xyxy)
        for name in ("confidence", "class_id", "tracker_id"):
            values = getattr(self, name)
            if values is not None and not (isinstance(values, np.ndarray) and values.shape == (n,)):
                raise ValueError(f"{name} must be a 1D np.ndarray with shape ({n},)")
        for key, values in self.data.items():
            if len(values) != n:
                raise ValueError(f"length of {key} must be {n}")

    def __len__(self) -> int:
        return len(self.xyxy)

    def __getitem__(self, key: str) -> Any:
        return self.data[key]
