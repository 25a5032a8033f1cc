"""Record which options a command reads, in each of its processes, while it runs.

``with_telling`` makes an environment that makes every process of ours add a line to a file when it
first reads an option. Copying, comparing or documenting the whole tree does not count as a read.
"""

from __future__ import annotations

from pathlib import Path

from tests.conftest import CHECKOUT

FILE = "reads.txt"
# Runs in each process. It reports each option once, at its first read.
TELLING = """
import os, sys
sys.path.insert(1, {checkout!r})
import dataclasses
from detector.core.config import schema

told = set()
package = os.path.join({checkout!r}, "detector", "")
# They hold, check, show or copy whole trees.
aside = tuple(package + name for name in ("core/config/", "core/commands/config.py"))

def tell(self, name, plain=object.__getattribute__):
    if name not in told and name in type(self).__dataclass_fields__:
        frame = sys._getframe(1)
        if frame.f_code is schema.Config.value.__code__:
            frame = frame.f_back
        reader = frame.f_code.co_filename
        if reader.startswith(package) and not reader.startswith(aside):
            told.add(name)
            file = os.open({file!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(file, (name + "\\n").encode())
            os.close(file)
    return plain(self, name)

for group in dataclasses.fields(schema.Config):
    type(group.default).__getattribute__ = tell
"""


def with_telling(folder: Path) -> dict[str, str]:
    place = folder / "telling"
    place.mkdir()
    text = TELLING.format(checkout=str(CHECKOUT), file=str(folder / FILE))
    (place / "sitecustomize.py").write_text(text)
    return {"PYTHONPATH": f"{place}:{CHECKOUT}"}


def told(folder: Path) -> set[str]:
    file = folder / FILE
    return set(file.read_text().split()) if file.exists() else set()
