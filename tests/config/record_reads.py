"""Record which options a command and its child processes read.

In the environment of ``recording_environment``, every process writes an option's name to a file
the first time it reads the option. Copying, comparing or documenting all options does not count.
"""

from pathlib import Path

from tests.conftest import CHECKOUT

FILE = "reads.txt"
# Python runs this code (as sitecustomize.py) at the start of each process.
RECORDER = """
import os, sys
sys.path.insert(1, {checkout!r})
import dataclasses
from detector.core.config import schema

recorded = set()
package = os.path.join({checkout!r}, "detector", "")
# Reads in these files, which define, check, show or copy all options, do not count.
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
