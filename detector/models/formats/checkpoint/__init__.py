"""Front end for .pt: a checkpoint of YOLOv5 or YOLOv7, or a plain state dict. Reading one runs nothing of it.

archive.py   the zip around it, bounded
allowed.py   the names that may stand in its pickle
unpickle.py  the pickle -> records; nothing is imported, torch is not needed
tensors.py   its storages -> numpy
contents.py  records -> tensors by name, description, class names
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from detector.models.base import FrontEnd, ModelRequest, Network
from detector.models.formats.checkpoint.contents import Contents

SUFFIXES = (".pt", ".pth")


def read(request: ModelRequest) -> Network:
    """The network of a checkpoint. ``random_seed``: the same network with random numbers."""
    from detector.models.formats.yolo.network import network_of

    with open_checkpoint(request.path) as (contents, digest):
        return network_of(contents, digest, request)


FRONT_END = FrontEnd(read, takes_random_weights=True)


@contextmanager
def open_checkpoint(path: Path) -> Iterator[tuple[Contents, bytes]]:
    """What the file holds, and its sha256. Tensors are read from it when they are asked for, while it is open."""
    from detector.models.formats.checkpoint.archive import Archive
    from detector.models.formats.checkpoint.contents import contents_of
    from detector.models.formats.checkpoint.unpickle import load

    with Archive(path) as archive:
        yield contents_of(load(archive), str(path)), bytes.fromhex(archive.sha256())
