"""Stand-ins for a GPU in a rehearsal: the tests' fakes, and replacements of NVIDIA's tools.

Rows that come from them are marked ``rehearsed``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class AbsentError(Exception):
    """The tests' fakes, or their data, are missing; the message says which."""


@contextmanager
def fake_gpu(
    memory: str = "cuda-python", slow_copies: bool = False, release: int = 11
) -> Iterator[Any]:
    """Install fakes in this process: a driver, a TensorRT that computes, the package ``memory``.
    ``slow_copies``: each upload takes 10 ms, so that waits can be measured."""
    try:
        import pytest

        from tests.fakes import device
        from tests.fakes.install import install_fake_tensorrt
    except ImportError as error:
        raise AbsentError(f"the tests' fakes cannot be imported: {error}") from error
    patch = pytest.MonkeyPatch()
    try:
        try:
            machine = install_fake_tensorrt(patch, release, memory)
        except pytest.skip.Exception as error:
            raise AbsentError(str(error)) from error
        if slow_copies:
            upload = device.Stream.upload

            def slowly(self: Any, address: int, host: Any) -> None:
                upload(self, address, host)
                self.put(lambda: time.sleep(0.01))

            patch.setattr(device.Stream, "upload", slowly)
        yield machine
    finally:
        patch.undo()


@contextmanager
def cheap_compiler() -> Iterator[None]:
    """Make torch.compile capture and guard graphs as usual, but run them uncompiled: compiling for
    a CPU takes minutes, and says nothing about a GPU."""
    import torch

    real = torch.compile

    def compiled(module: Any, *, dynamic: bool, options: Any) -> Any:
        return real(module, dynamic=dynamic, backend="eager")

    torch.compile = compiled
    try:
        yield
    finally:
        torch.compile = real


NVML = '''"""A fake GPU in NVML: half a gigabyte in use, 50 W, and 100 W more while this process
computes."""
import time
from types import SimpleNamespace


def nvmlInit():
    pass


def nvmlDeviceGetHandleByIndex(index):
    return index


def nvmlDeviceGetTotalEnergyConsumption(handle):
    return int(time.monotonic() * 50_000 + time.process_time() * 100_000)  # mJ


def nvmlDeviceGetMemoryInfo(handle):
    return SimpleNamespace(used=512_000_000, total=80_000_000_000)
'''


def fake_nvml(folder: Path) -> str:
    """Return a folder for PYTHONPATH whose ``pynvml`` reports a GPU."""
    folder.mkdir()
    (folder / "pynvml.py").write_text(NVML)
    return str(folder)


def add_kernels(database: str) -> int:
    """Add a kernel to each ``infer`` range of an nsys export; return how many were added."""
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(database)) as export:
        export.execute("create table CUPTI_ACTIVITY_KIND_KERNEL (start integer, end integer)")
        ranges = export.execute(
            "select n.start, n.end from NVTX_EVENTS n left join StringIds s on s.id = n.textId "
            "where n.end is not null and coalesce(n.text, s.value) = 'infer'"
        ).fetchall()
        rows = [(start, (start + end) // 2) for start, end in ranges]
        export.executemany("insert into CUPTI_ACTIVITY_KIND_KERNEL values (?, ?)", rows)
        export.commit()
    return len(rows)
