"""A tiny network for runs that do not test the network itself."""

from pathlib import Path

import numpy as np

from tests.networks import cfg_text

CFG = cfg_text(
    "net width=32 height=32 channels=3",
    "convolutional filters=21 size=1 stride=32 activation=linear",
    "yolo mask=0,1,2 anchors=10,14,23,27,37,58 classes=2 num=3",
)


def write_network(folder: Path) -> Path:
    """Write x.cfg for pictures of 32x32, and x.weights with zeros next to it."""
    (folder / "x.cfg").write_text(CFG)
    numbers = np.zeros(21 + 21 * 3, np.float32).tobytes()
    (folder / "x.weights").write_bytes(np.array([0, 2, 0, 0, 0], "<i4").tobytes() + numbers)
    return folder / "x.cfg"
