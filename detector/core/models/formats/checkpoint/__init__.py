"""Front end for .pt: a checkpoint of YOLOv5 or YOLOv7, or a plain state dict.

Reading a checkpoint runs nothing of it, and needs no torch.

archive.py   the zip around it, with limits; its storages -> numpy
unpickle.py  the names that may stand in its pickle; the pickle -> records
contents.py  records -> tensors by name, description, class names
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from detector.core.models.base import FrontEnd, ModelRequest, Network
from detector.core.models.formats.checkpoint.contents import Contents

SUFFIXES = (".pt", ".pth")


def read(request: ModelRequest) -> Network:
    """Return the network of a checkpoint; with a seed, the same network with random numbers."""
    from detector.core.models.formats.yolo.network import network_of_contents

    with open_checkpoint(request.path) as (contents, digest):
        return network_of_contents(contents, digest, request)


FRONT_END = FrontEnd(read, takes_random_weights=True)


@contextmanager
def open_checkpoint(path: Path) -> Iterator[tuple[Contents, bytes]]:
    """Yield the file's contents and sha256. Tensors are read on demand while it is open. Raises
    ModelError."""
    from detector.core.models.formats.checkpoint.archive import Archive
    from detector.core.models.formats.checkpoint.contents import contents_of
    from detector.core.models.formats.checkpoint.unpickle import unpickle

    with Archive(path) as archive:
        yield contents_of(unpickle(archive), str(path)), bytes.fromhex(archive.sha256())
