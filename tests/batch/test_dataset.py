"""The Parquet dataset, and the queries in docs/batch.md."""

import csv
import json
import re

import pytest

from detector.batch import dataset
from tests.conftest import CHECKOUT

pytest.importorskip("pyarrow", reason="machine: pyarrow is not installed")
ITEMS = {
    "cam1/monday.mp4": [["person", 0.9], ["vehicle", 0.5]],
    "cam1/tüesday 100%.mp4": [["person", 0.3]],
    "2024-01-02": [],
}


def write_rows(path, detections):
    lines = [
        {
            "frame": number,
            "time_s": number / 25,
            "detections": [{"class": name, "score": score, "box": [1.0, 2.5, 3.0, 4.0]}],
        }
        for number, (name, score) in enumerate(detections)
    ]
    lines.append({"frame": len(detections), "time_s": 1.0, "detections": []})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def out(tmp_path):
    for name, detections in ITEMS.items():
        dataset.gather(str(tmp_path), name, write_rows(tmp_path / "rows.jsonl", detections))
    return tmp_path


def connection(out, monkeypatch):
    duckdb = pytest.importorskip("duckdb", reason="machine: duckdb is not installed")
    monkeypatch.chdir(out)
    return duckdb.connect()


def queries() -> list[str]:
    text = (CHECKOUT / "docs/batch.md").read_text(encoding="utf-8")
    return re.findall(r"^```sql\n(.*?)^```", text, re.S | re.M)


def test_duckdb_reads_one_row_per_detection_with_its_source(out, monkeypatch):
    detections = (
        connection(out, monkeypatch)
        .execute(
            "SELECT source, frame, time, class, score, box FROM "
            "read_parquet('detections/*/*.parquet', hive_partitioning = true) "
            "ORDER BY source, frame"
        )
        .fetchall()
    )
    box = {"x1": 1.0, "y1": 2.5, "x2": 3.0, "y2": 4.0}
    assert detections == [
        ("cam1/monday.mp4", 0, 0.0, "person", 0.9, box),
        ("cam1/monday.mp4", 1, 0.04, "vehicle", 0.5, box),
        ("cam1/tüesday 100%.mp4", 0, 0.0, "person", 0.3, box),
    ]


def test_pyarrow_reads_all_sources_as_one_dataset(out):
    import pyarrow.dataset

    table = pyarrow.dataset.dataset(out / "detections", partitioning="hive").to_table()
    assert table.num_rows == 3
    columns = {"source", "frame", "time", "class", "score", "box", "track", "inferred"}
    assert set(table.column_names) == columns
    assert "cam1/tüesday 100%.mp4" in table.column("source").to_pylist()


def test_csv_of_all_items_has_every_detection(tmp_path):
    detections = {**ITEMS, "=x": [["=y", 1]]}
    files = [
        (name, write_rows(tmp_path / f"{at}", detections[name]))
        for at, name in enumerate(detections)
    ]
    dataset.write_csv(tmp_path / "all.csv", files)
    with (tmp_path / "all.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [one["class"] for one in table] == ["person", "vehicle", "person", "'=y"]
    assert [one["source"] for one in table[2:]] == ["cam1/tüesday 100%.mp4", "'=x"]
    assert list(table[1].values())[1:] == "1 0.04 vehicle 0.5 1.0 2.5 3.0 4.0  1".split(" ")


@pytest.mark.parametrize("number", range(3))
def test_documented_queries_run(out, monkeypatch, number):
    assert len(queries()) == 3
    assert connection(out, monkeypatch).execute(queries()[number]).fetchall()


def test_writing_an_item_again_replaces_its_rows_in_the_dataset(out, tmp_path):
    import pyarrow.parquet

    again = write_rows(tmp_path / "rows.jsonl", [["person", 0.4]])
    dataset.gather(str(out), "cam1/monday.mp4", again)
    folder = dataset.partition(str(out), "cam1/monday.mp4")
    (file,) = folder.iterdir()
    assert pyarrow.parquet.read_metadata(file).num_rows == 1
    file.write_bytes(file.read_bytes()[:-1])
    assert dataset.missing(str(out), ITEMS) == ["cam1/monday.mp4"]
    dataset.remove(str(out), "cam1/monday.mp4")
    assert dataset.missing(str(out), ITEMS) == ["cam1/monday.mp4"]


def test_rows_of_several_blocks_go_into_one_file(tmp_path, monkeypatch):
    import pyarrow.parquet

    monkeypatch.setattr(dataset, "BLOCK", 2)
    source = write_rows(tmp_path / "rows.jsonl", [["person", 0.5]] * 7)
    dataset.gather(str(tmp_path), "a.mp4", source)
    (file,) = dataset.partition(str(tmp_path), "a.mp4").iterdir()
    assert pyarrow.parquet.read_metadata(file).num_rows == 7


def test_long_names_are_cut_and_stay_distinct(tmp_path):
    names = [f"{'ü' * 60}/{'x' * 200}{number}.mp4" for number in (1, 2)]
    folders = {dataset.partition(str(tmp_path), name).name for name in names}
    assert len(folders) == 2
    assert all(len(folder) <= 255 for folder in folders)
