"""Reading tables from untrusted files."""

import io
import json
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import pytest

from detector.core.errors import SourceError, UsageError
from detector.core.terminal.console import SafeConsole
from detector.lab.audit.case import audit
from detector.lab.audit.gather import gather
from detector.lab.audit.machine import Machine, read_machine
from detector.lab.audit.read import parse_tables, read_tables, read_titles
from detector.lab.terminal.audit import print_audit
from tests.one_line import one_line_error

PAGE = """# Results

| model | latency (ms) | note |
|:---|---:|---|
| **a** | 1.5 | x \\| y |
| [b](http://x) | 2.5 |

```
| not | a table |
|---|---|
| in | code |
```

## Second
model | FPS
--- | ---
c | 40
"""


def test_tables_of_a_page_are_named_by_heading_and_line() -> None:
    first, second = parse_tables(PAGE, "page.md", "markdown")
    assert first.name.startswith("page.md:3: Results")
    assert second.name.startswith("page.md:15: Second")
    assert first.labels == ["a", "b"]
    assert first.columns[2].texts == ["x | y", ""]
    assert [one.value for one in second.columns[1].known] == [40]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_csv_may_have_separators_other_than_commas(separator) -> None:
    text = f"model{separator}FPS\na{separator}40\n"
    (table,) = parse_tables(text, "t.csv", "csv")
    assert [one.value for one in table.columns[1].known] == [40]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "one column\n1\n",
        "model,FPS\n",
        "model,FPS\na,1,2\n",
        "model,FPS\na\n",
        "model,FPS\na,\x1b[2J\n",
        "model,FPS\na,\x00\n",
        f"model,FPS\na,{'x' * 5000}\n",
        "model,FPS\n" + "a,1\n" * 20_001,
        ",".join(f"c{n}" for n in range(300)) + "\n" + ",".join("1" * 300) + "\n",
        'model,FPS\n"a,1\n',
        "| a | b |\n|---|---|\n| 1 | 2 | 3 |\n",
        "| a | b |\n|---|---|\n" * 1,
        "# only words | and bars\n",
        f"| a | b |\n|---|---|\n| 1 | {'x' * 2_001} |\n",
        "| a | b |\n|---|---|\n| 1 | 2 |\n\n" * 201,
    ],
)
def test_malformed_table_is_a_one_line_error(text, tmp_path: Path) -> None:
    for name in ("t.csv", "t.md"):
        (tmp_path / name).write_text(text)
    wrong = "t.md" if text.startswith(("|", "#")) else "t.csv"
    with one_line_error(SourceError):
        read_tables(tmp_path / wrong)


def test_undecodable_huge_or_missing_file_raises_source_error(tmp_path: Path) -> None:
    (tmp_path / "latin.csv").write_bytes("model,FPS\né,1\n".encode("latin-1"))
    (tmp_path / "huge.csv").write_bytes(b"a,b\n" * (2 << 20))
    for name in ("latin.csv", "huge.csv", "absent.csv"):
        with pytest.raises(SourceError):
            read_tables(tmp_path / name)


def test_formula_is_read_as_text() -> None:
    (table,) = parse_tables("model,FPS\n=cmd|calc,=1+1\n", "t.csv", "csv")
    assert table.columns[1].known == []
    assert table.labels == ["=cmd|calc"]


def test_titles_in_a_file_replace_the_titles_of_columns(tmp_path: Path) -> None:
    (tmp_path / "titles.yaml").write_text("Lat.: latency (ms)\nscore: null\n")
    titles = read_titles(str(tmp_path / "titles.yaml"))
    (table,) = parse_tables("model,Lat.,score\na,5,7\n", "t.csv", "csv", titles=titles)
    assert [one.title for one in table.columns] == ["model", "latency (ms)"]
    assert [one.value for one in table.columns[1].known] == pytest.approx([0.005])
    (tmp_path / "t.csv").write_text("model,FPS\na,5\n")
    with pytest.raises(UsageError):  # a misspelt title is an error
        gather([str(tmp_path / "t.csv")], {"Lat": "latency (ms)"}, Machine())
    (tmp_path / "bad.yaml").write_text("- a\n")
    with pytest.raises(UsageError):
        read_titles(str(tmp_path / "bad.yaml"))


def test_machine_facts_are_read_from_a_file_and_from_pairs(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text("cores: 8\npeak: 8.1TFLOPS\nbandwidth: 320GB/s\n")
    found = read_machine([str(tmp_path / "m.yaml"), "card=T4", "clock=3.2GHz"])
    assert (found.number("peak"), found.number("bandwidth")) == pytest.approx((8.1e12, 320e9))
    assert (found.number("cores"), found.number("clock")) == (8, pytest.approx(3.2e9))
    assert found.given["card"] == "T4"


@pytest.mark.parametrize(
    "given", ["colour=red", "peak=8.1", "peak=fast", "cores=-1", "cores=0", "bandwidth=3ms"]
)
def test_invalid_machine_fact_is_refused(given) -> None:
    with pytest.raises(UsageError):
        read_machine([given])


def test_folders_and_files_without_tables_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": 1}')
    (tmp_path / "broken.json").write_text("{")
    for path in ("x.json", "broken.json", "x.exe", "."):
        with pytest.raises(UsageError):
            gather([str(tmp_path / path)], {}, Machine())


def test_machine_file_that_is_not_a_mapping_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text("- cores\n- 8\n")
    with pytest.raises(UsageError, match=r"m\.yaml.*peak: "):
        read_machine([str(tmp_path / "m.yaml")])


def test_more_than_500_paths_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("model,FPS\na,5\n")
    for paths, refused in ((500, False), (501, True)):
        with pytest.raises(UsageError, match=f"{paths} paths") if refused else nullcontext():
            assert len(gather([str(tmp_path / "t.csv")] * paths, {}, Machine()).tables) == 1


def test_printed_audit_lists_unread_columns_and_shortens_findings(tmp_path: Path) -> None:
    rows = "".join(f"m{at},40,100,{at}\n" for at in range(8))
    for at in range(8):
        (tmp_path / f"{at}.csv").write_text(f"model,latency (ms),FPS,strangeness\n{rows}")
    document = audit(
        gather([str(finding) for finding in sorted(tmp_path.iterdir())], {}, Machine())
    )
    console = SafeConsole(file=io.StringIO(), width=120)
    print_audit(console, document)
    printed = console.file.getvalue()
    assert "strangeness" in printed
    assert printed.count("not read: ") == 8
    counts = Counter(finding.rule for finding in document.findings)
    assert printed.count("and 2 more (--json prints all)") == list(counts.values()).count(8) > 0


def test_json_list_of_rows_is_a_table(tmp_path: Path) -> None:
    rows = [{"model": "a", "latency_ms": 14.1, "fps": 7.99}, {"model": "b", "latency_ms": 20}]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    case = gather([str(tmp_path / "rows.json")], {}, Machine())
    (table,) = case.tables
    assert [str(one.meaning) for one in table.columns] == ["model", "time, ms", "rate, fps"]
