"""The probe is an instrument of the tests: it must see exactly what a program does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nvtx_log import build_probe, probe_env, read_log

PROGRAM = """
import threading
import nvtx

domain = nvtx.get_domain("detect-video")
ready = threading.Barrier(2)

def work(names, fail):
    made = {n: domain.get_event_attributes(message=n, category="work", payload=0) for n in names}
    ready.wait()
    for index in range(3):
        for name in names:
            attributes = made[name]
            attributes.payload = index
            domain.push_range(attributes)
            try:
                domain.push_range(domain.get_event_attributes(message="inner", payload=100 + index))
                try:
                    if fail and index == 2:
                        raise RuntimeError("a stage that fails")
                finally:
                    domain.pop_range()
            except RuntimeError:
                pass
            finally:
                domain.pop_range()

todo = ((["read", "preprocess"], False), (["infer"], True))
threads = [threading.Thread(target=work, args=a) for a in todo]
for thread in threads: thread.start()
for thread in threads: thread.join()
other = nvtx.get_domain("another")
other.push_range(other.get_event_attributes(message="not ours"))
other.pop_range()
"""


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_probe(tmp_path_factory.mktemp("probe"))


def run(program: str, probe: Path, log: Path) -> None:
    env = {**os.environ, **probe_env(probe, log)}
    subprocess.run([sys.executable, "-c", program], env=env, check=True, timeout=240)


@pytest.mark.slow
def test_sees_exactly_the_ranges_of_every_thread(probe: Path, tmp_path: Path) -> None:
    run(PROGRAM, probe, tmp_path / "log.tsv")
    ranges = read_log(tmp_path / "log.tsv")
    threads = {r.thread: {s.name for s in ranges if s.thread == r.thread} for r in ranges}
    assert sorted(map(sorted, threads.values())) == [
        ["infer", "inner"],
        ["inner", "preprocess", "read"],
    ]
    outer = [(r.name, r.category, r.payload, r.depth) for r in ranges if r.name != "inner"]
    assert sorted(outer) == sorted(
        (n, "work", i, 0) for n in ("read", "preprocess", "infer") for i in range(3)
    )
    inner = [r for r in ranges if r.name == "inner"]
    assert sorted(r.payload for r in inner) == sorted([100, 101, 102] * 3)
    assert {(r.category, r.depth) for r in inner} == {(None, 1)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("calls", "complaint"),
    [
        ("d.push_range(d.get_event_attributes(message='left'))", "left open"),
        ("d.pop_range()", "had not opened"),
    ],
)
def test_unbalanced_ranges_are_found(
    probe: Path, tmp_path: Path, calls: str, complaint: str
) -> None:
    run(f"import nvtx; d = nvtx.get_domain('detect-video'); {calls}", probe, tmp_path / "log.tsv")
    with pytest.raises(AssertionError, match=complaint):
        read_log(tmp_path / "log.tsv")
