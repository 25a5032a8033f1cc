"""Front end for .pt: a checkpoint of YOLOv5 or YOLOv7, or a plain state dict.

Reading a checkpoint runs no code from it, and does not need torch.

archive.py   reads the zip file, with limits, and the stored numbers as numpy arrays
unpickle.py  reads the pickle into plain records, and refuses names that are not in a list
contents.py  finds tensors, description and class names in the records
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from detector.core.models.base import FrontEnd, ModelRequest, Network
from detector.core.models.formats.checkpoint.contents import Contents

SUFFIXES = (".pt", ".pth")


def read(request: ModelRequest) -> Network:
    """Return the network of a checkpoint, with random weights if the request has a seed."""
    from detector.core.models.formats.yolo.network import network_of_contents

    with open_checkpoint(request.path) as (contents, digest):
        return network_of_contents(contents, digest, request)


FRONT_END = FrontEnd(read, takes_random_weights=True)


@contextmanager
def open_checkpoint(path: Path) -> Iterator[tuple[Contents, bytes]]:
    """Yield contents and sha256. Tensors can be read until the context ends. Raises ModelError."""
    from detector.core.models.formats.checkpoint.archive import Archive
    from detector.core.models.formats.checkpoint.contents import contents_of
    from detector.core.models.formats.checkpoint.unpickle import unpickle

    with Archive(path) as archive:
        yield contents_of(unpickle(archive), str(path)), bytes.fromhex(archive.sha256())
