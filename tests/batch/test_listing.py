"""The items that a command line selects, and their names."""

import os
import re

import pytest

from detector.batch.listing import WHOLE, Item, Shard, list_sources, parse_shard
from detector.core.errors import SourceError, UsageError
from detector.core.run.outputs import SETTINGS
from tests.batch.pools import make_sources


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def names(*specs, **more):
    return [item.name for item in list_sources(specs, "out", **more).items]


def test_folder_is_listed_recursively_and_skipped_files_are_counted(tmp_path):
    files = "b.mp4 a/x.MKV a/notes.txt c.jpg .hidden/y.mp4 .z.mp4 a/d.HEIC e.mxf f.TXT noext s.xyz"
    make_sources(tmp_path / "in", *files.split())
    listing = list_sources(["in"], "out")
    assert [item.name for item in listing.items] == "a/d.HEIC a/x.MKV b.mp4 c.jpg e.mxf".split()
    (note,) = listing.notes()
    assert re.findall(r"\d \.?\w+", note) == ["4 skipped", "2 .txt", "1 without", "1 .xyz"]
    assert list_sources(["in/*.mp4"], "out").notes() == []


def test_path_is_absolute_and_version_changes_with_the_file(tmp_path):
    make_sources(tmp_path, "in/a.mp4")
    (item,) = list_sources(["in"], "out").items
    assert item.path == str(tmp_path / "in/a.mp4")
    assert item.size == (tmp_path / "in/a.mp4").stat().st_size
    os.utime(tmp_path / "in/a.mp4", ns=(1, 1))
    (changed,) = list_sources(["in"], "out").items
    assert changed.version != item.version


def test_names_of_a_glob_start_at_its_first_wildcard(tmp_path):
    make_sources(tmp_path, "in/cam1/mon/a.mp4", "in/cam2/mon/a.mp4", "in/cam2/b.mp4", "in/c.mp4")
    assert names("in/cam*/*.mp4") == ["cam2/b.mp4"]
    assert names("in/cam*") == ["cam1/mon/a.mp4", "cam2/b.mp4", "cam2/mon/a.mp4"]
    assert names("in/**/a.mp4") == ["cam1/mon/a.mp4", "cam2/mon/a.mp4"]


def test_paths_in_a_list_are_relative_to_the_list(tmp_path):
    make_sources(tmp_path, "in/a.mp4", "in/sub/b.mp4", "in/sub/c.mp4")
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists/today.txt").write_text(
        f"# comment\n\n../in/a.mp4\n{tmp_path}/in/sub\n../in/gone.mp4\n"
    )
    listing = list_sources(["lists/today.txt"], "out")
    assert [item.name for item in listing.items] == ["a.mp4", "sub/b.mp4", "sub/c.mp4"]
    (missing,) = listing.refused
    assert missing.source.endswith("in/gone.mp4")
    assert (missing.exit_code, missing.tries) == (3, 0)


@pytest.mark.parametrize(
    ("files", "sources", "expected"),
    [
        ("in/a.mp4 in/b.bin", "in/a.mp4 in/b.bin", "a.mp4 b.bin"),  # a file may have any suffix
        ("i/a.mp4 i/b.mp4 j/a.mp4 j/c.mp4 k/a.mp4", "i j k", "a.mp4 b.mp4 2/a.mp4 c.mp4 3/a.mp4"),
        ("i/a.mp4 i/2/a.mp4 j/a.mp4", "i j", "2/a.mp4 a.mp4 3/a.mp4"),  # the name 2/ is taken
        ("i/a.mp4 j/a.mp4/b.mp4", "i j", "a.mp4 2/a.mp4/b.mp4"),  # a.mp4 is already a file
        ("i/a.mp4 j/a.mp4/b.mp4", "j i", "a.mp4/b.mp4 2/a.mp4"),
    ],
)
def test_equal_names_of_two_sources_get_a_numbered_folder(tmp_path, files, sources, expected):
    make_sources(tmp_path, *files.split())
    assert names(*sources.split()) == expected.split()


def test_file_in_several_sources_is_listed_once(tmp_path):
    make_sources(tmp_path, "in/a.mp4")
    listing = list_sources(["in", "in/a.mp4", "in/*.mp4"], "out")
    assert [item.name for item in listing.items] == ["a.mp4"]
    assert listing.silent == ["in/a.mp4", "in/*.mp4"]


def test_known_item_keeps_its_name(tmp_path):
    make_sources(tmp_path, "one/a.mp4", "two/a.mp4")
    known = {str(tmp_path / "two/a.mp4"): "a.mp4"}
    assert names("one", "two", known=known) == ["2/a.mp4", "a.mp4"]


def test_job_outputs_are_not_listed_as_sources(tmp_path):
    make_sources(tmp_path, "in/a.mp4", "in/out/files/a.mp4/video.mp4")
    assert [item.name for item in list_sources(["in"], "in/out").items] == ["a.mp4"]
    assert [item.name for item in list_sources(["in/**"], "in/out").items] == ["a.mp4"]


def test_loops_of_links_are_not_followed(tmp_path):
    make_sources(tmp_path, "in/sub/a.mp4")
    (tmp_path / "in/sub/up").symlink_to(tmp_path / "in")
    (tmp_path / "in/loop.mp4").symlink_to("loop.mp4")
    listing = list_sources(["in"], "out")
    assert [item.name for item in listing.items] == ["sub/a.mp4"]
    assert [one.source for one in listing.refused] == [str(tmp_path / "in/loop.mp4")]


@pytest.mark.parametrize(
    "name",
    ["a\nb.mp4", "a\x1b[31m.mp4", "a\x7f.mp4", "a\u202eb.mp4", os.fsdecode(b"a\xff.mp4")],
    ids=["newline", "escape", "delete", "bidi", "bytes"],
)
def test_hostile_name_is_refused_and_other_files_are_listed(tmp_path, name):
    make_sources(tmp_path, "in/a.mp4")
    (tmp_path / "in" / name).write_bytes(b"x")
    listing = list_sources(["in"], "out")
    assert [item.name for item in listing.items] == ["a.mp4"]
    assert [one.tries for one in listing.refused] == [0]


def test_names_from_a_list_cannot_lead_out_of_the_output_folder(tmp_path):
    make_sources(tmp_path, "in/a.mp4", "other/b.mp4")
    (tmp_path / "in/list.txt").write_text("a.mp4\n../other/b.mp4\n/../../x/../y.mp4\n")
    listing = list_sources(["in/list.txt"], "out")
    for item in listing.items:
        assert ".." not in item.name.split("/")
        assert not os.path.isabs(item.name)


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ("ftp://host/a.mp4", UsageError, "mount"),
        ("https://host/a.mp4?sig=1", UsageError, "signature"),
        ("s3://bucket/a::b.mp4", UsageError, "chained"),
        ("rtsp://host/stream", UsageError, "mount"),
        ("0", UsageError, "camera"),
        ("gone", SourceError, "check the path"),
        ("nothing/*.mp4", SourceError, "no video"),
    ],
)
def test_invalid_source_raises_with_the_reason(spec, error, message):
    with pytest.raises(error, match=message):
        list_sources([spec], "out")


def test_empty_folder_is_reported_and_refused_if_it_is_the_only_source(tmp_path):
    make_sources(tmp_path, "in/a.mp4")
    (tmp_path / "empty").mkdir()
    assert list_sources(["in", "empty"], "out").silent == ["empty"]
    with pytest.raises(SourceError, match="no video"):
        list_sources(["empty"], "out")
    make_sources(tmp_path, "texts/a.txt", "texts/b.md", "texts/c.md")
    with pytest.raises(SourceError, match=r"3 skipped: 2 \.md, 1 \.txt"):
        list_sources(["texts"], "out")


def test_outputs_of_earlier_runs_are_neither_listed_nor_counted_as_skipped(tmp_path):
    make_sources(tmp_path, "in/a.jpg", "in/a-ort-detected/a.jpg", "in/a-ort-detected.jsonl")
    try:
        for name in ("in/a-ort-detected", "in/a-ort-detected.jsonl"):
            os.setxattr(tmp_path / name, SETTINGS, b"x")
    except OSError:
        pytest.skip("machine: the folder for tests has no extended attributes")
    listing = list_sources(["in"], "out")
    assert ([item.name for item in listing.items], listing.notes()) == (["a.jpg"], [])


def test_each_item_belongs_to_exactly_one_shard(tmp_path):
    items = [Item(f"{n}.mp4", f"/in/{n}.mp4", 1, "1-1") for n in range(200)]
    parts = [[item for item in items if Shard(number, 3).has(item.path)] for number in (1, 2, 3)]
    assert sorted(item for part in parts for item in part) == sorted(items)
    assert all(len(part) > 40 for part in parts)
    assert all(WHOLE.has(item.path) for item in items)


def test_shard_is_parsed_from_i_of_n():
    assert parse_shard(None) == WHOLE
    assert parse_shard("2/4") == Shard(2, 4)
    for wrong in ("0/4", "5/4", "2", "a/b", "2/4/6", "-1/2"):
        with pytest.raises(UsageError, match="I/N"):
            parse_shard(wrong)
