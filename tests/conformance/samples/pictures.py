"""A folder of pictures."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conformance.samples import GALLERY, Sample, damage


@contextmanager
def sample(folder: Path) -> Iterator[Sample]:
    pictures = GALLERY["pictures"](folder)
    shutil.copytree(pictures, folder / "some")
    (folder / "empty").mkdir()
    alone = damage(shutil.copy(pictures / "0.png", folder / "alone.png") and folder / "alone.png")
    damage(folder / "some" / "1.png")
    yield Sample(str(pictures), (str(folder / "some"), str(folder / "empty"), *alone))
