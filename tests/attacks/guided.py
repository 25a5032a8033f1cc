"""Coverage-guided fuzzing of the program's own binary readers, by atheris (libFuzzer).

The fuzzer keeps inputs that reach new branches of the reader, and damages them further. So the
fuzzer gets past checks that reject purely random damage. Each reader runs in its own process. An
error that is not documented ends the process. The input that caused the error is kept.

    pip install 'detect-video[fuzz]'
"""

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.attacks import inputs

CHECKOUT = Path(__file__).parents[2]
INSTRUMENTED = [
    "detector.core.models.formats",
    "detector.core.models.names",
    "detector.core.session",
    "detector.lab.analysis",
]
TIMEOUT_S, MEMORY_MB, LONGEST = 20, 2048, 20_000
MOST_KEPT = 5  # failed inputs that are kept for each reader
# libFuzzer reads its peak memory from the kernel. The peak includes the time before exec, when the
# process is still a copy of its parent. We make the parent a small shell, not this whole program.
SMALL_PARENT = ("sh", "-c", '"$@"; exit $?', "sh")

Read = Callable[[bytes], object]


@dataclass(frozen=True)
class Reader:
    """A reader to fuzz. ``prepare(folder)`` returns a function that reads one input and may write
    into the folder. ``seeds`` returns valid inputs to start from."""

    prepare: Callable[[Path], Read]
    seeds: Callable[[], Iterable[bytes]]


@dataclass
class ReaderResult:
    """The result of one reader: inputs tried, branches reached, inputs that failed."""

    name: str
    tried: int = 0
    branches: int = 0
    failed: int = 0


# ---- the readers


def _from_file(path: Path, read: Callable[[Path], object]) -> Read:
    """Return a function that writes bytes to the file and lets ``read`` read the file."""
    from detector.core.errors import DetectVideoError

    def read_bytes(data: bytes) -> None:
        path.write_bytes(data)
        with suppress(DetectVideoError):
            read(path)

    return read_bytes


def _weights(folder: Path) -> Read:
    from detector.core.models.formats.darknet.cfg import read_cfg
    from detector.core.models.formats.darknet.layers import read_architecture
    from detector.core.models.formats.darknet.weights import fold, read_weights

    cfg = folder / "m.cfg"
    cfg.write_text(inputs.CFG)
    architecture = read_architecture(read_cfg(cfg)[0])

    def read(path: Path) -> None:
        filters = read_weights(path, architecture)
        for layer, stored in zip(architecture.convolutions, filters, strict=True):
            fold(architecture, layer, stored)

    return _from_file(folder / "m.weights", read)


def _cfg(folder: Path) -> Read:
    from detector.core.models.formats.darknet.cfg import read_cfg
    from detector.core.models.formats.darknet.layers import read_architecture

    return _from_file(folder / "m.cfg", lambda path: read_architecture(read_cfg(path)[0]))


def _checkpoint(folder: Path) -> Read:
    from detector.core.models.formats.checkpoint import open_checkpoint

    def read(path: Path) -> None:
        with open_checkpoint(path) as (contents, _):
            _arrays(contents)

    return _from_file(folder / "m.pt", read)


def _arrays(contents: Any) -> None:
    for tensor in contents.tensors.values():
        with suppress(ValueError):  # documented; callers turn it into a ModelError
            tensor.array()


def _pickle(folder: Path) -> Read:
    """Read a damaged pickle inside a valid zip. Damage to the zip itself would break checksums."""
    read_file = _checkpoint(folder)
    with zipfile.ZipFile(io.BytesIO(inputs.content("state.pt"))) as file:
        entries = [(one.filename, file.read(one)) for one in file.infolist()]

    def read(data: bytes) -> None:
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as file:
            for name, content in entries:
                file.writestr(name, data if name.endswith("data.pkl") else content)
        read_file(packed.getvalue())

    return read


def _pickles() -> Iterable[bytes]:
    for name in ("state.pt", "whole.pt"):
        with zipfile.ZipFile(io.BytesIO(inputs.content(name))) as file:
            yield file.read("archive/data.pkl")


def _safetensors(folder: Path) -> Read:
    from detector.core.models.formats.safetensors import read_safetensors

    return _from_file(folder / "m.safetensors", lambda path: _arrays(read_safetensors(path)[0]))


def _spans(folder: Path) -> Read:
    from detector.lab.analysis.profile import profile_document
    from detector.lab.session.read import read_session

    for name, content in inputs.session().items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)

    return _from_file(folder / "spans.npz", lambda _: profile_document(read_session(folder)))


def _columns(folder: Path) -> Read:
    """Read a damaged column in a valid archive. The first byte selects the column."""
    read_file = _spans(folder)
    with zipfile.ZipFile(io.BytesIO(inputs.session()["spans.npz"])) as file:
        entries = [(one.filename, file.read(one)) for one in file.infolist()]

    def read(data: bytes) -> None:
        chosen = data[0] % len(entries) if data else 0
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as file:
            for at, (name, content) in enumerate(entries):
                file.writestr(name, data[1:] if at == chosen else content)
        read_file(packed.getvalue())

    return read


def _column_seeds() -> Iterable[bytes]:
    with zipfile.ZipFile(io.BytesIO(inputs.session()["spans.npz"])) as file:
        for at, one in enumerate(file.infolist()):
            yield bytes([at]) + file.read(one)[:2000]


READERS = {
    "darknet cfg": Reader(_cfg, lambda: [inputs.CFG.encode()]),
    "darknet weights": Reader(_weights, lambda: [inputs.content("small.weights")]),
    "checkpoint zip": Reader(
        _checkpoint, lambda: [inputs.content("state.pt"), inputs.content("whole.pt")]
    ),
    "checkpoint pickle": Reader(_pickle, _pickles),
    "safetensors": Reader(_safetensors, lambda: [inputs.content("t.safetensors")]),
    "spans archive": Reader(_spans, lambda: [inputs.session()["spans.npz"]]),
    "spans columns": Reader(_columns, _column_seeds),
}


# ---- running them


def run_all(seconds: float, seed: int, keep: Path, workers: int, say: Callable[[str], None]) -> int:
    """Run each reader for its part of the time and print a table. Return the number of failures."""
    if find_spec("atheris") is None:
        say("guided: skipped, atheris is not installed: pip install 'detect-video[fuzz]'")
        return 0
    each = seconds * workers / len(READERS)
    with ThreadPoolExecutor(workers) as pool:
        rows = list(pool.map(lambda name: run_reader(name, each, seed, keep), READERS))
    say(f"{'guided reader':20}{'inputs':>10}{'branches':>10}{'failed':>8}")
    for row in rows:
        say(f"{row.name:20}{row.tried:10}{row.branches:10}{row.failed:8}")
    return sum(row.failed for row in rows)


def run_reader(name: str, seconds: float, seed: int, keep: Path) -> ReaderResult:
    """Run one reader in new processes until the time is up. Each failed input ends its process."""
    result, end = ReaderResult(name), time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="guided-") as place:
        corpus, kept = Path(place) / "corpus", Path(place) / "failed"
        for folder in (corpus, kept):
            folder.mkdir()
        for number, data in enumerate(READERS[name].seeds()):
            (corpus / f"seed-{number}").write_bytes(data)
        while (left := end - time.monotonic()) > 1 and result.failed < MOST_KEPT:
            done = subprocess.run(
                [
                    *SMALL_PARENT, sys.executable, "-m", "tests.attacks.guided", name, str(corpus),
                    f"-artifact_prefix={kept}/", f"-max_total_time={int(left)}",
                    f"-seed={(seed + result.failed) % 2**32 or 1}", f"-timeout={TIMEOUT_S}",
                    f"-rss_limit_mb={MEMORY_MB}", f"-max_len={LONGEST}", "-print_final_stats=1",
                    "-verbosity=1",
                ],
                cwd=CHECKOUT, capture_output=True, text=True, errors="replace", check=False,
                env={**os.environ, "PYTHONPATH": str(CHECKOUT), "TMPDIR": place},
                # TMPDIR is set, because the child ends without removing its temporary folder
            )  # fmt: skip
            text = done.stdout + done.stderr
            result.tried += int((re.findall(r"number_of_executed_units: (\d+)", text) or [0])[-1])
            result.branches = max([result.branches, *map(int, re.findall(r"cov: (\d+)", text))])
            if done.returncode == 0:
                break
            result.failed += 1
            target = keep / f"guided-{name.replace(' ', '-')}-{seed}-{result.failed}"
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
            (target / "printed.txt").write_text(text[-20_000:])
            for path in kept.iterdir():
                shutil.move(path, target / path.name)
    return result


def main(name: str, *options: str) -> None:
    import atheris

    with tempfile.TemporaryDirectory(prefix="guided-") as place:
        with atheris.instrument_imports(include=INSTRUMENTED):
            read = READERS[name].prepare(Path(place))
        atheris.Setup([sys.argv[0], *options], read)
        atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
