"""Test that options of cameras are refused for files, on which they have no effect."""

from pathlib import Path

import pytest

from detector.core.config.levels import COMMAND_LINE, merge_levels
from detector.core.config.schema import flag_of, options
from detector.core.errors import UsageError
from detector.core.wings import guest_groups
from detector.live.guest import refuse_camera_options
from detector.live.options import with_drawn_zones
from tests.cli.command import assert_one_line_error, detect_video

OPTIONS = {
    "policy": "latest",  # refused although it is the default
    "max_age": 2,
    "start_timeout": 20,
    "wait": True,
    "record": "annotated",
    "no_overlay": True,
    "segment": 3,
    "clips": True,
    "clip_before": 1,
    "clip_after": 1,
    "keep_days": 1,
    "keep_gb": 1,
    "events": "-",
    "webhook": "https://host/Pa55word",
    "mqtt": "mqtt://host/topic",
    "mqtt_discovery": "homeassistant",
}
FLAGS = {
    leaf.name: flag_of(leaf) for group, leaf in options() if group in {*guest_groups()} - {"page"}
}


def config(**arguments):
    return merge_levels((COMMAND_LINE, arguments))


def test_table_has_every_option_of_cameras():
    assert OPTIONS.keys() == FLAGS.keys() - {"repeat"}


@pytest.mark.parametrize("name", OPTIONS)
def test_option_of_cameras_is_refused_for_a_file(name: str):
    arguments = {name: OPTIONS[name]}
    with pytest.raises(UsageError, match=f"^{FLAGS[name]} .*--loop"):
        refuse_camera_options([__file__], config(**arguments), arguments)


def test_config_file_is_refused_only_for_options_that_it_turns_on():
    refuse_camera_options([__file__], config(policy="latest", clips=False, segment=10))
    with pytest.raises(UsageError, match="--mqtt is for cameras"):
        refuse_camera_options([__file__], config(mqtt="mqtt://host/topic"))
    with pytest.raises(UsageError, match="--clips is for cameras"):
        refuse_camera_options([str(Path(__file__).parent)], config(clips=True))


def test_options_that_are_turned_off_or_also_apply_to_files_are_accepted():
    off = {"clips": False, "repeat": False, "serve": "8080", "page_hosts": ["a"]}
    refuse_camera_options([__file__], config(**off), off)


def test_option_of_cameras_is_refused_before_anything_is_loaded(tmp_path: Path):
    (tmp_path / "in.mp4").write_bytes(b"never read")
    process = detect_video("in.mp4", "--webhook", "https://host/Pa55word", cwd=tmp_path)
    assert_one_line_error(process, 2, "--webhook is for cameras; add --loop")
    assert "Pa55word" not in process.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["in.mp4"]


def test_lines_drawn_in_an_earlier_run_are_used_again(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert with_drawn_zones(config()).value("zones") is None
    Path("live").mkdir()
    Path("live/zones.yaml").touch()
    restarted = with_drawn_zones(config())
    assert (restarted.value("zones"), restarted.value("track")) == ("live/zones.yaml", "bytetrack")
    assert with_drawn_zones(config(zones="mine.yaml")).value("zones") == "mine.yaml"
    assert with_drawn_zones(config(output="/dev/null")).value("zones") is None
