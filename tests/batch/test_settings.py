"""The settings of a job, resolved once for all workers and shards."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import yaml

from detector.batch.settings import (
    as_plain,
    ask,
    config_of,
    digest_of,
    key_of,
    read_settings,
    settle,
    write_settings,
)
from detector.core.config.levels import resolve_config
from detector.core.config.schema import Config
from detector.core.errors import UsageError
from tests.batch.pools import FACTS


def settings(number=0, **more):
    config, flags = ask(["in"], {"conf": 0.4}, None)
    facts = replace(FACTS, config=as_plain(config), engine_reason=str(number), **more)
    return settle(["in"], flags, None, config, facts)


def test_jsonl_is_added_to_the_requested_outputs(tmp_path):
    assert ask([], {"save": "video"}, None)[0].output.save == ("video", "jsonl")
    assert ask([], {"save": "csv,jsonl"}, None)[0].output.save == ("csv", "jsonl")
    assert ask([], {}, None)[0].output.save is None


def test_paths_of_files_become_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("x.cfg", "x.weights", "x.names", "font.ttf", "cal.mp4"):
        (tmp_path / name).touch()
    flags = {
        "model": "x.cfg",
        "weights": "x.weights",
        "names": "x.names",
        "font": "font.ttf",
        "calibrate": "cal.mp4",
    }
    config, _ = ask([], flags, None)
    assert config.network.model == str(tmp_path / "x.cfg")
    assert config.network.weights == str(tmp_path / "x.weights")
    assert config.network.names == str(tmp_path / "x.names")
    assert config.drawing.font == str(tmp_path / "font.ttf")
    assert config.calibration.calibrate == str(tmp_path / "cal.mp4")
    assert ask([], {"model": "street"}, None)[0].network.model == "street"


def test_config_equals_itself_after_a_round_trip():
    config = resolve_config(None, {"classes": "person,car", "conf": 0.3, "stride": 2})
    assert config_of(as_plain(config)) == config
    assert not {"live", "record", "events", "page"} & as_plain(config).keys()


def test_error_names_the_damaged_file_or_unknown_key(tmp_path):
    (tmp_path / "job.json").write_text("{")
    with pytest.raises(UsageError, match=r"job\.json"):
        read_settings(str(tmp_path))
    with pytest.raises(UsageError, match="nosuch"):
        config_of({"runtime": {"nosuch": 1}})


def test_settings_equal_themselves_after_writing_and_reading(tmp_path):
    written = write_settings(str(tmp_path), settings(), first=True)
    assert read_settings(str(tmp_path)) == written
    level = yaml.safe_load((tmp_path / "settings.yaml").read_text())
    assert resolve_config(str(tmp_path / "settings.yaml"), {}).selection.conf == 0.4
    assert level == written.config
    assert {path.name for path in tmp_path.iterdir()} == {"job.json", "settings.yaml"}


def test_concurrent_shards_use_the_settings_of_one_of_them(tmp_path):
    def write(number):
        return write_settings(str(tmp_path), settings(number), first=True)

    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(write, range(8)))
    assert len({one.engine_reason for one in results}) == 1
    assert results[0] == read_settings(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.json", "settings.yaml"]


def test_resumed_job_may_replace_the_settings(tmp_path):
    write_settings(str(tmp_path), settings(1), first=True)
    write_settings(str(tmp_path), settings(2), first=False)
    assert read_settings(str(tmp_path)).engine_reason == "2"


def test_digest_depends_only_on_options_that_affect_results():
    plain = as_plain(Config())
    same = digest_of(FACTS)

    def digest(group, **values):
        return digest_of(replace(FACTS, config={**plain, group: {**plain[group], **values}}))

    assert digest("runtime", threads=4, concurrency=2, engines_dir="x") == same
    assert digest("loop", sync=True) == same
    assert digest("network", model="/elsewhere/x.cfg") == same  # only the hash of the model counts
    assert digest("calibration", calibrate_frames=3) == same  # no effect without int8
    others = [
        digest("runtime", batch=4),
        digest("runtime", precision="int8"),
        digest("selection", iou=0.6),
        digest("input", frames=9),
        digest("drawing", hide_labels=True),
        digest("output", save=["csv", "jsonl"]),
        digest_of(replace(FACTS, model_sha256="c" * 64)),
    ]
    assert len({same, *others}) == 1 + len(others)


def test_key_depends_on_the_path_the_version_and_the_settings():
    keys = {key_of("/a", "1-1", "d"), key_of("/b", "1-1", "d"), key_of("/a", "1-2", "d")}
    assert len({*keys, key_of("/a", "1-1", "e")}) == 4
