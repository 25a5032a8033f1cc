"""A run writes only a key into HOME, and an unwritable HOME does not stop the run."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from detector import Detector
from detector.core.config.levels import resolve_config
from detector.core.engines._built import building, store
from detector.core.errors import OutputError
from detector.core.run.detect import detect
from detector.core.run.measurements import SWITCH
from detector.core.run.outputs import OutputPlan
from detector.core.session.store import Session
from tests.conftest import CHECKOUT, night

CLIP = CHECKOUT / "videos" / "street.mp4"


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ort", "openvino", night("torch")])
def test_default_job_writes_only_a_key_to_an_empty_home(tmp_path: Path, engine: str) -> None:
    """The engines folder gets the graph. HOME gets only the key that authenticates graphs."""
    pytest.importorskip({"ort": "onnxruntime"}.get(engine, engine))
    home, place, temporary = (tmp_path / name for name in ("home", "place", "tmp"))
    for folder in (home, place, temporary):
        folder.mkdir()
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(temporary)}
    environment[SWITCH] = "1" if engine == "ort" else "0"  # with ort, test self-timing too
    environment["OMP_WAIT_POLICY"] = "PASSIVE"  # threads that wait must not keep a core busy
    command = [sys.executable, "-m", "detector", str(CLIP), "--frames", "2", "--engine", engine]
    done = subprocess.run(
        [*command, "--quiet", "--engines-dir", str(tmp_path / "engines")],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    files = [path for path in home.rglob("*") if not path.is_dir()]
    assert files == [home / ".cache/detect-video/cache.key"]
    assert sorted(temporary.rglob("*")) == []
    expected = {f"street-{engine}-detected.mp4", f"street-{engine}-detected.jsonl", "runs"}
    assert {path.name for path in place.iterdir()} == expected


@pytest.fixture
def unwritable(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set a default folder that even root cannot create, since its path leads through a file."""
    folder = Path("/dev/null/detect-video/engines")
    monkeypatch.setattr(store, "default_folder", lambda: folder)
    store.temporary_folder.cache_clear()
    return folder


@pytest.mark.slow
def test_unwritable_engines_folder_is_replaced_by_a_temporary_one(
    tmp_path: Path, unwritable: Path
) -> None:
    settings = {
        "engine": "ort",
        "frames": 1,
        "output": f"{tmp_path}/",
        "run_dir": f"{tmp_path}/run",
    }
    result = detect([str(CLIP)], resolve_config(None, settings))
    assert result.exit_code == 0
    assert any(str(unwritable) in note for note in result.summary.notes)
    with Detector(engine="ort") as detector:
        assert detector.names == ("person", "vehicle")


def test_unwritable_requested_folder_raises_an_error(tmp_path: Path) -> None:
    settings = {
        "engine": "ort",
        "frames": 1,
        "engines_dir": "/dev/null/x",
        "output": f"{tmp_path}/",
    }
    with pytest.raises(OutputError, match="--engines-dir"):
        detect([str(CLIP)], resolve_config(None, settings))


@pytest.mark.slow
def test_temporary_folder_is_removed_at_exit(tmp_path: Path) -> None:
    code = (
        "from detector.core.engines._built import store; place = store.temporary_folder(); "
        "assert place.is_dir() and place is store.temporary_folder(); print(place)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(done.stdout.strip()).parent == tmp_path
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("home", [None, "/dev/null", "/nonexistent"])
def test_default_folder_is_chosen_for_any_home(
    monkeypatch: pytest.MonkeyPatch, home: str | None
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if home is None:
        monkeypatch.delenv("HOME")
    else:
        monkeypatch.setenv("HOME", home)
    monkeypatch.setattr(
        store, "__file__", "/usr/lib/python3/site-packages/detector/core/engines/x.py"
    )
    assert store.default_folder().name == "engines"
    assert not store.is_writable(Path("/dev/null/x"))


def test_unknown_home_does_not_create_tilde_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `docker run --user 1234`, the user id has no account, and HOME is not set."""

    def unknown(_: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setattr(Path, "expanduser", unknown)
    monkeypatch.setattr(
        store, "__file__", str(tmp_path / "site/detector/core/engines/_built/store.py")
    )
    folder = store.default_folder()
    assert not store.is_writable(folder)
    with pytest.raises(OutputError):
        building.rewrite(folder, "x.json", lambda _: b"{}")
    assert list(tmp_path.iterdir()) == []


NOBODY = 65534


@contextmanager
def as_nobody() -> Iterator[None]:
    """Give up root's rights, since root may write even in a folder of mode 0555."""
    if os.getuid():
        yield
        return
    os.setresgid(NOBODY, NOBODY, 0)
    os.setresuid(NOBODY, NOBODY, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)
        os.setresgid(0, 0, 0)


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a read-only current folder, next to a folder ``open`` that is writable for all."""
    parent = Path(tempfile.mkdtemp())  # not in pytest's folder, which other accounts cannot enter
    for name, mode in (("open", 0o777), ("closed", 0o555), (".", 0o755)):
        (parent / name).mkdir(exist_ok=True)
        (parent / name).chmod(mode)
    monkeypatch.chdir(parent / "closed")
    monkeypatch.setattr(tempfile, "tempdir", f"{parent}/open")
    yield parent
    (parent / "closed").chmod(0o755)
    shutil.rmtree(parent)


def test_session_in_a_read_only_folder_is_temporary(read_only: Path) -> None:
    with as_nobody():
        session = Session.create(None, "in-ort", or_temporary=True)
        live_session = Session.create_in(Path("runs/live"), "2026-11-22", or_temporary=True)
        assert session.folder.is_relative_to(read_only / "open")
        assert session.folder.name == "in-ort"
        assert str(session.folder) in session.notes[0]
        assert "runs cannot be written" in session.notes[0]
        assert "runs/live" in live_session.notes[0]
        session.discard()
        live_session.discard()
    assert list((read_only / "open").iterdir()) == []


def test_unwritable_requested_session_raises_an_error(read_only: Path) -> None:
    for run_dir, temporary in (("run", True), (None, False)):
        with as_nobody(), pytest.raises(OutputError, match="Permission denied"):
            Session.create(run_dir, "in-ort", or_temporary=temporary)
    assert list((read_only / "open").iterdir()) == []


def test_output_error_is_raised_if_the_runs_folder_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").write_text("mine")
    with pytest.raises(OutputError, match="has that name"):
        Session.create(None, "in-ort", or_temporary=True)


@pytest.mark.parametrize(
    ("settings", "possible"),
    [
        ({}, False),
        ({"no_video": True}, False),
        ({"output": "x.mp4"}, False),
        ({"output": "new/below/"}, False),
        ({"output": "-", "save": ["video", "jsonl"]}, False),
        ({"output": "-", "save": ["video"]}, True),
        ({"output": "../open/x.mp4"}, True),
        ({"output": "../open/new/below/"}, True),
        ({"output": "/dev/null"}, True),
        ({"output": "-"}, True),
        ({"output": "-", "save": ["csv"]}, True),
        ({"save": []}, True),
    ],
    ids=str,
)
def test_current_folder_must_be_writable_only_if_outputs_go_there(
    read_only: Path, settings: dict[str, object], possible: bool
) -> None:
    plan = OutputPlan(resolve_config(None, settings).output, [str(CLIP)], streams=True)
    with as_nobody():
        assert plan.may_write() is possible
        with nullcontext() if possible else pytest.raises(OutputError, match=r"/closed; .* -o DIR"):
            plan.check_permission()


@pytest.mark.slow
def test_run_in_a_read_only_folder_succeeds_with_outputs_elsewhere(read_only: Path) -> None:
    if os.getuid() or not shutil.which("setpriv"):
        pytest.skip("machine: only root can become another account")
    account = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    command = [*account, sys.executable, "-m", "detector", str(CLIP), "--frames", "2"]
    done = subprocess.run(
        [*command, "--engine", "null", "-o", "../open/x.jsonl", "--json"],
        env={
            **os.environ,
            "PYTHONPATH": str(CHECKOUT),
            "TMPDIR": f"{read_only}/open",
            "HOME": f"{read_only}/open",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    if "ermission denied" in done.stderr:
        pytest.skip("machine: another account cannot read the checkout")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert Path(summary["session"]).is_relative_to(read_only / "open")
    assert any(summary["session"] in note for note in summary["notes"])
    assert (Path(summary["session"]) / "detections.jsonl").is_file()
    assert len((read_only / "open/x.jsonl").read_text().splitlines()) == 2
