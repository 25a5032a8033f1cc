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

from detector.errors import UsageError
from detector.models.base import Network
from detector.models.formats.checkpoint.contents import Contents

SUFFIXES = (".pt", ".pth")


def read(
    path: Path,
    *,
    weights: Path | None = None,
    names: Path | None = None,
    random_seed: int | None = None,
    size: tuple[int, int] | None = None,
    batch: int = 1,
) -> Network:
    """The network of a checkpoint. ``random_seed``: the same network with random numbers."""
    from detector.models.formats.yolo.network import Ask, network_of

    if weights is not None:
        raise UsageError(
            f"--weights {weights}: {path} holds its own weights; give only one of the two"
        )
    with open_checkpoint(path) as (contents, digest):
        return network_of(contents, digest, Ask(path, names, random_seed, size, batch))


@contextmanager
def open_checkpoint(path: Path) -> Iterator[tuple[Contents, bytes]]:
    """What the file holds, and its sha256. Tensors are read from it when they are asked for, while it is open."""
    from detector.models.formats.checkpoint.archive import Archive
    from detector.models.formats.checkpoint.contents import contents_of
    from detector.models.formats.checkpoint.unpickle import load

    with Archive(path) as archive:
        yield contents_of(load(archive), str(path)), bytes.fromhex(archive.sha256())
