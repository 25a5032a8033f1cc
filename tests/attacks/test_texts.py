"""Hostile YAML, JSON, CSV and label rows are read, or refused in one line."""

import os
import sys
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pytest

from detector.core.config.levels import resolve_config
from detector.core.errors import DetectVideoError, ModelError, SourceError, UsageError
from detector.core.models.formats.yolo.description import read_description
from detector.core.models.names import read_names
from detector.core.session.codec import parse_json
from detector.lab import datasets
from detector.lab.datasets.classmap import read_mapping
from tests.attacks import texts
from tests.attacks.running import run_apart

# These could exhaust the memory or take very long, so they run in a process with limits.
DANGEROUS = ("aliases", "merge keys", "path of 5,000", "queue", "frame 10^12", "length 10^12")
SLOW = ("3,000 brackets", "the root folder")  # cases that take almost a second each
ERRORS: dict[str, type[DetectVideoError]] = {
    "config": UsageError,
    "mapping": UsageError,
    "document": UsageError,
    "description": ModelError,
    "names": ModelError,
}


def is_one_of(name: str, words: tuple[str, ...]) -> bool:
    return any(word in name for word in words)


def lay_out(files: dict[str, bytes], folder: Path) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def read(kind: str, files: dict[str, bytes]) -> None:
    first = Path(next(iter(files)))
    if kind == "config":
        resolve_config(str(first), {})
    elif kind == "mapping":
        read_mapping(str(first), Path("nowhere"))
    elif kind == "description":
        read_description(first)
    elif kind == "document":
        parse_json(first.read_bytes(), first)
    elif kind == "names":
        read_names(first)
    elif kind in texts.DETECTIONS:
        dataset = datasets.open("seq" if kind == "mot-detections" else "sound/l.json")
        names = ("person", "vehicle", "car") if kind == "mot-detections" else None
        datasets.open_detections(texts.DETECTIONS[kind], dataset, names=names)
    else:
        datasets.open("l.json" if kind == "coco" else ".").check_readable()


def check(name: str, files: dict[str, bytes], folder: Path, monkeypatch) -> None:
    kind = name.partition("/")[0]
    lay_out(files, folder)
    if kind in texts.DETECTIONS:
        lay_out(texts.LABELLED, folder)
    monkeypatch.chdir(folder)
    message = ""
    try:
        read(kind, files)
    except ERRORS.get(kind, SourceError) as error:
        message = str(error)
    assert message.isprintable(), name


KNOWN = [
    pytest.param(name, files, id=name, marks=pytest.mark.slow if is_one_of(name, SLOW) else ())
    for name, files in texts.known()
    if not is_one_of(name, DANGEROUS)
]


@pytest.mark.parametrize(("name", "files"), KNOWN)
def test_known_text_is_read_or_refused_in_one_line(tmp_path, monkeypatch, name, files):
    check(name, files, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "count", [pytest.param(40, id="few"), pytest.param(600, id="many", marks=pytest.mark.slow)]
)
def test_randomly_damaged_text_is_read_or_refused_in_one_line(tmp_path, monkeypatch, count):
    for number, (name, files) in enumerate(islice(texts.cases(4), count)):
        folder = tmp_path / str(number)
        folder.mkdir()
        check(name, files, folder, monkeypatch)


@pytest.mark.parametrize("kind", ["config", "mapping", "description", "yolo"])
def test_nested_aliases_are_refused_in_one_line(tmp_path, monkeypatch, kind):
    data = texts.TEXTS["nested aliases under names"].encode()
    (tmp_path / "data.yaml").write_bytes(data)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ERRORS.get(kind, SourceError), match=r"data\.yaml") as caught:
        read(kind, {"data.yaml": data})
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


@pytest.mark.slow
def test_texts_that_expand_stay_within_memory_and_cpu_limits(tmp_path):
    lines = run_apart(__file__, tmp_path, 120)
    expected = [name for name, _ in texts.known() if is_one_of(name, DANGEROUS)]
    assert lines == expected


def main(folder: Path) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
    for number, (name, files) in enumerate(texts.known()):
        if is_one_of(name, DANGEROUS):
            (folder / str(number)).mkdir()
            os.chdir(folder / str(number))
            lay_out(files, Path())
            with suppress(DetectVideoError):
                read(name.partition("/")[0], files)
            print(name, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
