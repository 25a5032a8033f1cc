"""Record which options a command and its child processes read.

In the environment of ``recording_environment``, every process writes an option's name to a file
when it first reads it. Copying, comparing or documenting all options does not count as a read.
"""

from __future__ import annotations

from pathlib import Path

from tests.conftest import CHECKOUT

FILE = "reads.txt"
# Runs in each process, and records each option at its first read.
RECORDER = """
import os, sys
sys.path.insert(1, {checkout!r})
import dataclasses
from detector.core.config import schema

recorded = set()
package = os.path.join({checkout!r}, "detector", "")
# These files define, check, show or copy all options.
ignored = tuple(package + name for name in ("core/config/", "core/commands/config.py"))

def record(self, name, plain=object.__getattribute__):
    if name not in recorded and name in type(self).__dataclass_fields__:
        frame = sys._getframe(1)
        if frame.f_code is schema.Config.value.__code__:
            frame = frame.f_back
        reader = frame.f_code.co_filename
        if reader.startswith(package) and not reader.startswith(ignored):
            recorded.add(name)
            file = os.open({file!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(file, (name + "\\n").encode())
            os.close(file)
    return plain(self, name)

for group in dataclasses.fields(schema.Config):
    type(group.default).__getattribute__ = record
"""


def recording_environment(folder: Path) -> dict[str, str]:
    package = folder / "recorder"
    package.mkdir()
    text = RECORDER.format(checkout=str(CHECKOUT), file=str(folder / FILE))
    (package / "sitecustomize.py").write_text(text)
    return {"PYTHONPATH": f"{package}:{CHECKOUT}"}


def recorded_reads(folder: Path) -> set[str]:
    file = folder / FILE
    return set(file.read_text().split()) if file.exists() else set()
