"""A run is refused before its engine starts if another run is writing the same output."""

from pathlib import Path

import pytest

from detector.core import engines
from detector.core.config.levels import resolve_config
from detector.core.errors import OutputError
from detector.core.run.detect import detect
from detector.core.sinks._partial import Partial, refuse_being_written
from tests.cli.small import write_network
from tests.sources.clips import write_video


class EngineStartedError(Exception):
    """Raised where the engine would start, which is the step after the check."""


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_network(tmp_path)
    write_video(tmp_path / "in.mp4", 3, codec="mpeg4")
    write_video(tmp_path / "b.mp4", 3, codec="mpeg4")

    def start(*sources, **options):
        config = resolve_config(None, {"model": "x.cfg", "engine": "null", **options})
        return detect([str(source) for source in sources or ("in.mp4",)], config)

    def raise_started(*_):
        raise EngineStartedError

    def start_without_an_engine(*sources, **options):
        with monkeypatch.context() as patch:
            patch.setattr(engines, "load_library", raise_started)
            return start(*sources, **options)

    start.until_engine = start_without_an_engine
    return start


@pytest.mark.parametrize(
    ("options", "target"),
    [
        ({}, "in-null-detected.mp4"),
        ({}, "in-null-detected.jsonl"),
        ({"output": "x.mkv"}, "x.mkv"),
        ({"output": "out/"}, "out/in-null-detected.mp4"),
        ({"save": ["csv"]}, "in-null-detected.csv"),
    ],
    ids=str,
)
def test_second_run_is_refused_before_the_engine_starts(run, tmp_path, options, target):
    (tmp_path / "out").mkdir()
    writing = Partial(Path(target))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OutputError, match="another run"):
        run.until_engine(**options)
    assert sorted(tmp_path.rglob("*")) == before
    writing.discard()
    with pytest.raises(EngineStartedError):
        run.until_engine(**options)


def test_output_of_other_settings_does_not_block_a_run(run):
    """The first output has conf=0.5, so a run with conf=0.6 writes in-ort-detected-2.mp4."""
    run(conf=0.5, engine="ort")
    writing = Partial(Path("in-ort-detected.mp4"))
    with pytest.raises(OutputError, match="another run"):
        run.until_engine(conf=0.5, engine="ort")
    with pytest.raises(EngineStartedError):
        run.until_engine(conf=0.6, engine="ort")
    writing.discard()


def test_run_of_several_sources_starts_although_one_output_is_being_written(run):
    writing = Partial(Path("in-null-detected.mp4"))
    with pytest.raises(EngineStartedError):
        run.until_engine("in.mp4", "b.mp4")
    writing.discard()


def test_partial_file_of_a_killed_run_does_not_block(tmp_path):
    Partial(tmp_path / "x.mp4").release()
    assert (tmp_path / "x.partial.mp4").exists()
    refuse_being_written(tmp_path / "x.mp4")
    refuse_being_written(tmp_path / "none.mp4")


def test_simultaneous_checks_do_not_block_each_other(tmp_path, monkeypatch):
    import fcntl

    Partial(tmp_path / "x.mp4").release()
    real = fcntl.flock

    def ask_within(fd, how):
        monkeypatch.setattr(fcntl, "flock", real)
        real(fd, how)
        refuse_being_written(tmp_path / "x.mp4")

    monkeypatch.setattr(fcntl, "flock", ask_within)
    refuse_being_written(tmp_path / "x.mp4")


def test_folder_being_written_is_refused(tmp_path):
    writing = Partial(tmp_path / "in.v2-crops", folder=True)
    with pytest.raises(OutputError, match="another run"):
        refuse_being_written(tmp_path / "in.v2-crops")
    writing.release()
    refuse_being_written(tmp_path / "in.v2-crops")
