"""Read exports that the tests write in nsys's published schema: with all tables, with few tables,
with damage, and with ranges of other programs."""

import json
import re
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from detector.core.cli.printing import terminal
from detector.core.errors import UsageError
from detector.core.session.codec import from_builtins, to_json
from detector.lab.analysis.loop.recorded import recorded_facts
from detector.lab.session.nsys import read_nsys
from detector.lab.session.profile import NsysDocument
from detector.lab.terminal.profile import print_recorded
from tests.lab.analysis.pipelines import load, run_of, shape

PID, PROCESS = 77, 77 << 24
STRINGS = {1: "detect-video", 2: "work", 3: "wait_input", 9: "futex", 10: "poll"}


def export(path, run_load, *, registered=True, mark=True, extras=True, domain="detect-video"):
    """Write an export of a simulated run; return its calls. ``registered``: put texts in StringIds,
    like Python's nvtx. ``mark``: add the loop's sizes. ``extras``: add system calls and kernels."""
    activities = run_of(run_load)
    texts = dict(STRINGS) | {1: domain}
    database = sqlite3.connect(path)
    database.execute(
        "create table NVTX_EVENTS (start int, end int, eventType int, category int, text text,"
        " globalTid int,"
        " textId int, domainId int, int64Value int)"
    )
    number = {
        name: 20 + at
        for at, name in enumerate(
            ("read", "preprocess", "infer", "head", "nms", "annotate", "write")
        )
    }
    texts |= {at: name for name, at in number.items()}
    texts |= {
        40: "batch",
        41: "loop "
        + " ".join(f"{n}={int(getattr(run_load.shape, n))}" for n in run_load.shape.__slots__),
    }
    tids = {
        name: PROCESS + 1000 + at for at, name in enumerate(sorted({a.thread for a in activities}))
    }

    def event(kind, text, tid=PROCESS + 1, start=0, end=None, category=None, value=None):
        database.execute(
            "insert into NVTX_EVENTS values (?,?,?,?,?,?,?,?,?)",
            (
                start,
                end,
                kind,
                category,
                None if registered else texts[text],
                tid,
                text if registered else None,
                5,
                value,
            ),
        )

    event(75, 1)
    event(33, 2, category=1)
    event(33, 3, category=2)
    if mark:
        event(34, 41)
    for a in activities:
        event(59, number[a.stage], tids[a.thread], a.start_ns, a.end_ns, 1, a.number)
    worker = next((tid for name, tid in tids.items() if name.startswith("worker")), None)
    if worker:
        event(59, 40, worker, 0, activities[1].end_ns, 2, 0)
    event(59, number["read"], PROCESS + 1, 5, None, 1, 99)  # still open when the recording ended
    if registered or extras:
        database.execute("create table StringIds (id int, value text)")
        database.executemany("insert into StringIds values (?,?)", texts.items())
    if extras:
        first = next(a for a in activities if a.stage == "write")
        database.execute("create table OSRT_API (start int, end int, globalTid int, nameId int)")
        middle = (first.start_ns + first.end_ns) // 2
        rows = [(first.start_ns - 1000, middle, tids[first.thread], 9), (0, 5, PROCESS + 999, 10)]
        database.executemany("insert into OSRT_API values (?,?,?,?)", rows)
        database.execute("create table CUPTI_ACTIVITY_KIND_KERNEL (start int, end int)")
        last = max(a.end_ns for a in activities)
        database.executemany(
            "insert into CUPTI_ACTIVITY_KIND_KERNEL values (?,?)",
            [(0, last // 4), (last // 8, last // 2)],
        )
    database.commit()
    database.close()
    return activities


def recording(path):
    facts = json.loads(to_json(recorded_facts(read_nsys(path))))
    from_builtins(facts, NsysDocument, path)
    return facts


SECONDS = dict(read=0.002, preprocess=0.001, infer=0.004, head=0.001, nms=0.001, annotate=0.001)
LOAD = load(40, shape(), **SECONDS, write=0.002)
END = max(activity.end_ns for activity in run_of(LOAD))
MS = 1_000_000


@pytest.mark.parametrize("registered", [True, False])
def test_recording_is_read_with_all_tables(tmp_path, registered):
    activities = export(tmp_path / "a.sqlite", LOAD, registered=registered)
    facts = recording(tmp_path / "a.sqlite")
    rows = {row["step"]: row for row in facts["stages"]}
    assert {name: row["count"] for name, row in rows.items()} == {
        "read": 41,
        "preprocess": 40,
        "infer": 40,
        "head": 40,
        "nms": 40,
        "annotate": 40,
        "write": 40,
    }
    assert rows["infer"]["avg"] == pytest.approx(4.0)
    assert facts["loop_is_known"]
    assert facts["loop"]["requests"] == LOAD.shape.requests
    assert facts["waits"] == {"worker-0": {"batch": pytest.approx(activities[1].end_ns / 1e9)}}
    # Of a system call, only the part within a stage counts. Calls on other threads are ignored.
    assert facts["blocked"] == {
        "annotate": {"futex": pytest.approx(1e-6)},
        "write": {"futex": pytest.approx(0.001)},
    }
    assert facts["gpu"]["busy_share"] == pytest.approx(0.5)  # overlapping kernels count once
    stages = {row["name"]: row["share"] for row in facts["critical_path"]["stages"]}
    # The worker takes 6 ms per frame; the reader and the writer take 3 ms each.
    assert stages["infer"] + stages["head"] + stages["nms"] > 0.9
    json.dumps(facts)


def test_recording_without_optional_tables_is_read(tmp_path):
    export(tmp_path / "a.sqlite", LOAD, registered=False, mark=False, extras=False)
    facts = recording(tmp_path / "a.sqlite")
    assert facts["blocked"] == {}
    assert not facts["gpu"]["available"]
    assert "kernels" in facts["gpu"]["reason"]
    assert not facts["loop_is_known"]
    assert facts["critical_path"]["wall_s"] > 0


@pytest.mark.parametrize(
    ("loop", "batch", "threads"), [(shape(batch=4, images=16), 4, 3), (shape(sync=True), 1, 1)]
)
def test_sizes_of_the_loop_are_inferred_if_its_mark_is_missing(tmp_path, loop, batch, threads):
    one = load(40, loop, read=0.002, preprocess=0.001, infer=0.004, head=0.001, write=0.002)
    export(tmp_path / "a.sqlite", one, mark=False)
    (run,) = read_nsys(tmp_path / "a.sqlite")
    assert run.loop["batch"] == batch
    assert run.loop["sync"] == loop.sync
    assert len(run.columns["thread_names"]) == threads


def new_database(statement):
    def make(path):
        with closing(sqlite3.connect(path)) as database, database:
            database.execute(statement)

    return make


def changed(statement):
    def make(path):
        export(path, LOAD)
        with closing(sqlite3.connect(path)) as database, database:
            for one in statement.split(";"):
                database.execute(one)

    return make


def damaged_schema(path):
    """Damage the schema. SQLite's error message then contains a byte that is not UTF-8."""
    export(path, LOAD)
    statement = b"StringIds (id int"
    content = path.read_bytes()
    assert statement in content
    path.write_bytes(content.replace(statement, b"StringIds \x80id int"))


ENDLESS = "with recursive r(x) as (select 1 union all select x + 1 from r) select x as start from r"
SLOW = (
    "create table OSRT_API (start int, end int, nameId int, globalTid int as (printf('%.*c', 9e8)))"
)

FOREIGN = [
    (changed("update NVTX_EVENTS set end = start - 1 where end"), r"NVTX_EVENTS\.end"),
    (changed("update NVTX_EVENTS set start = 'noon' where end"), r"NVTX_EVENTS\.start"),
    (changed("update NVTX_EVENTS set start = 9e18 where end"), r"NVTX_EVENTS\.start"),
    (changed("update OSRT_API set end = start - 1"), r"OSRT_API\.end"),
    (changed("update CUPTI_ACTIVITY_KIND_KERNEL set start = null"), r"KERNEL\.start"),
    (changed(f"drop table NVTX_EVENTS; create view NVTX_EVENTS as {ENDLESS}"), "no NVTX ranges"),
    (changed("update StringIds set value = zeroblob(9000000) where id = 41"), "too big"),
    (
        changed("update StringIds set value = replace(value, 'batch=1', 'batch=0') where id = 41"),
        r"\$\.batch",
    ),
    (lambda path: None, "no such file"),
    (lambda path: path.write_bytes(b"SQLite format 3\0 but no more"), "not an SQLite export"),
    (lambda path: path.write_text("hello"), "not an SQLite export"),
    (new_database("create table OSRT_API (start int)"), "no NVTX ranges"),
    (new_database("create table NVTX_EVENTS (start int)"), "no such column"),
    (
        changed("update NVTX_EVENTS set int64Value = 'many' where eventType = 59"),
        "damaged: int64Value",
    ),
    (changed("update NVTX_EVENTS set int64Value = -5 where eventType = 59"), "damaged: int64Value"),
    (damaged_schema, "not an SQLite export"),
    (lambda path: export(path, LOAD, domain="somebody-else"), "no ranges of the domain"),
]


@pytest.mark.parametrize("statement", [SLOW, f"create view OSRT_API as {ENDLESS}"])
def test_computed_columns_and_views_are_ignored(tmp_path, statement):
    changed(f"drop table OSRT_API; {statement}")(tmp_path / "a.sqlite")
    assert recording(tmp_path / "a.sqlite")["blocked"] == {}


def test_slow_or_large_recording_is_refused(tmp_path, monkeypatch):
    export(tmp_path / "a.sqlite", LOAD)
    with closing(sqlite3.connect(tmp_path / "a.sqlite")) as database, database:
        many = "with recursive r(x) as (select 1 union all select x + 1 from r limit 30000)"
        database.execute(f"insert into NVTX_EVENTS (eventType) {many} select 1 from r")
    monkeypatch.setattr("detector.lab.session.nsys.TIMEOUT_S", -1.0)
    with pytest.raises(UsageError, match="shorter"):
        read_nsys(tmp_path / "a.sqlite")
    monkeypatch.undo()
    monkeypatch.setattr("detector.lab.session.nsys.MAX_ROWS", 10)
    with pytest.raises(UsageError, match="more than 10 rows"):
        read_nsys(tmp_path / "a.sqlite")


@pytest.mark.parametrize(
    "change", ["start = 5, end = 9", "int64Value = 0", "start = -end, end = -start"]
)
def test_analysis_ends_despite_cyclic_dependencies(tmp_path, change):
    changed(f"update NVTX_EVENTS set {change} where end")(tmp_path / "a.sqlite")
    assert recording(tmp_path / "a.sqlite")["stages"]


@pytest.mark.parametrize(("make_file", "message"), FOREIGN)
def test_damaged_or_foreign_file_raises_a_one_line_usage_error(tmp_path, make_file, message):
    make_file(tmp_path / "a.sqlite")
    with pytest.raises(UsageError, match=message) as caught:
        read_nsys(tmp_path / "a.sqlite")
    assert "\n" not in str(caught.value)


def test_locked_database_is_refused_and_no_extra_files_remain(tmp_path):
    path = tmp_path / "a.sqlite"
    export(path, LOAD)
    for mode in ("delete", "wal"):
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute(f"pragma journal_mode={mode}")
            database.execute("begin exclusive")
            with pytest.raises(UsageError, match="another program"):
                read_nsys(path)
    assert read_nsys(path)
    assert [*tmp_path.iterdir()] == [path]


def test_open_ranges_are_counted_and_ignored(tmp_path):
    activities = export(tmp_path / "a.sqlite", LOAD)
    facts = recording(tmp_path / "a.sqlite")
    assert facts["runs"] == [
        {
            "process": PID,
            "program": None,
            "frames": 40,
            "seconds": pytest.approx(facts["runs"][0]["seconds"]),
            "ranges": len(activities) + 2,
            "open_ranges": 1,
            "outside": False,
        }
    ]


def test_two_runs_in_one_process_are_read_separately(tmp_path):
    """Each run has a range named "run". A mark before the range has the run's queue sizes."""
    activities = export(tmp_path / "a.sqlite", LOAD)
    end = max(one.end_ns for one in activities)
    with closing(sqlite3.connect(tmp_path / "a.sqlite")) as database, database:
        sizes = " ".join(f"{n}={int(getattr(LOAD.shape, n))}" for n in LOAD.shape.__slots__)
        other = sizes.replace("queue_batches=2", "queue_batches=7")
        database.execute("insert into StringIds values (50, 'run'), (51, ?)", (f"loop {other}",))
        rest = "eventType, category, text, globalTid, textId, domainId, int64Value"
        columns = f"(start, end, {rest})"
        database.execute(
            f"insert into NVTX_EVENTS {columns} select start + {2 * end}, end + {2 * end}, {rest} "
            "from NVTX_EVENTS where eventType = 59 and end is not null"
        )
        insert = f"insert into NVTX_EVENTS {columns} values (?,?,?,null,null,?,?,5,null)"
        tid = PROCESS + 1
        database.executemany(
            insert,
            [
                (0, end, 60, tid, 50),
                (2 * end - 1, None, 34, tid, 51),
                (2 * end, None, 60, tid, 50),  # still open at the end of the recording
            ],
        )
    one, two = read_nsys(tmp_path / "a.sqlite")
    assert (one.frames, two.frames) == (40, 40)
    assert (one.loop["queue_batches"], two.loop["queue_batches"]) == (2, 7)
    assert two.start_ns == 2 * end
    assert not two.kernels
    assert one.kernels


SINGLE = ("preprocess", "infer", "head", "nms")


def export_with_single_pictures(path, at, *, run=True, kernels=True, ranges=SINGLE):
    """Export a run with its range named "run", and single pictures outside the run, which begin at
    ``at`` (ns). Each has a kernel, and a call of 1 ms on the main thread per item in ``ranges``."""
    export(path, LOAD, extras=False)
    columns = "(start, end, eventType, globalTid, domainId, category, int64Value, textId)"
    insert = f"insert into NVTX_EVENTS {columns} values (?,?,?,?,5,?,?,?)"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("delete from NVTX_EVENTS where eventType = 59 and end is null")
        database.execute("insert into StringIds values (50, 'run')")
        numbers = dict(database.execute("select value, id from StringIds"))
        if run:
            database.execute(insert, (0, END, 60, PROCESS + 1, None, None, 50))
        for frame, start in enumerate(at):
            for step, stage in enumerate(ranges):
                first = start + step * MS
                row = (first, first + MS, 59, PROCESS + 1, 1, frame, numbers[stage])
                database.execute(insert, row)
        if kernels:
            database.execute(
                "create table CUPTI_ACTIVITY_KIND_KERNEL (start int, end int, globalPid int)"
            )
            rows = [(start + MS, start + 2 * MS, PROCESS) for start in [*at, END // 2]]
            database.executemany("insert into CUPTI_ACTIVITY_KIND_KERNEL values (?,?,?)", rows)


@pytest.fixture
def after_the_run(tmp_path):
    path = tmp_path / "a.sqlite"
    export_with_single_pictures(path, [END + 10 * MS, END + 20 * MS, END + 30 * MS])
    return path


def test_ranges_outside_of_runs_are_listed_last(after_the_run):
    run, outside = read_nsys(after_the_run)
    assert (run.outside, outside.outside) == (False, True)
    assert (run.frames, outside.frames) == (40, 3)
    assert (outside.ranges, outside.open) == (12, 0)
    assert outside.process == run.process == PID
    assert outside.end_ns - outside.start_ns == 24 * MS
    assert set(outside.columns["thread_names"].tolist()) == {"main"}
    # The mark before the run does not apply to single pictures, which have no queues.
    assert run.loop_is_known
    assert not outside.loop_is_known
    assert outside.loop["sync"]
    assert [len(one.kernels) for one in (run, outside)] == [1, 3]


def test_run_does_not_include_single_pictures_before_and_after_it(tmp_path):
    path = tmp_path / "a.sqlite"
    export_with_single_pictures(path, [-20 * MS, END + 10 * MS])
    run, outside = read_nsys(path)
    assert (run.frames, outside.frames) == (40, 2)
    assert [len(one.kernels) for one in (run, outside)] == [1, 2]
    assert outside.start_ns == -20 * MS
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("update CUPTI_ACTIVITY_KIND_KERNEL set globalPid = null")
    assert [len(one.kernels) for one in read_nsys(path)] == [1, 2]


def test_tables_show_a_run_rather_than_single_pictures(tmp_path):
    """The run is shown even if there are more single pictures. --nsys-run can select these."""
    path = tmp_path / "a.sqlite"
    export_with_single_pictures(path, [END + 10 * MS * number for number in range(1, 51)])
    facts = json.loads(to_json(recorded_facts(read_nsys(path))))
    assert facts["run"] == 1
    assert [one["outside"] for one in facts["runs"]] == [False, True]
    assert [one["frames"] for one in facts["runs"]] == [40, 50]
    facts_of_pictures = recorded_facts(read_nsys(path), 2)
    assert {row.step: row.count for row in facts_of_pictures.stages} == dict.fromkeys(SINGLE, 50)
    assert facts_of_pictures.critical_path is not None


@pytest.mark.parametrize("number", [None, 2])
def test_ranges_outside_of_runs_are_mentioned_once(after_the_run, capsys, number):
    document = recorded_facts(read_nsys(after_the_run), number)
    print_recorded(terminal(piped_width=140), document)
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("12 ranges of process 77") == 1
    assert "--nsys-run 2" in shown.partition("12 ranges of process 77")[2]
    assert "queues" not in shown


def test_only_the_longest_stages_and_threads_are_printed(tmp_path, capsys):
    """Another program's numbered ranges gave 15,000 rows, which took half a minute to print."""
    export_with_single_pictures(tmp_path / "a.sqlite", [])
    document = recorded_facts(read_nsys(tmp_path / "a.sqlite"))
    stages = [replace(document.stages[0], step=f"step_{at}", total=at) for at in range(60)]
    waits = {f"thread_{at}": {"input": float(at)} for at in range(51)}
    print_recorded(terminal(piped_width=140), replace(document, stages=stages, waits=waits))
    printed = capsys.readouterr().out
    assert re.findall(r"step_\d+", printed) == [f"step_{at}" for at in range(10, 60)]
    assert re.findall(r"thread_\d+", printed) == [f"thread_{at}" for at in range(1, 51)]
    assert "10 shorter stages omitted; --json has all" in printed
    assert "1 shorter thread omitted; --json has all" in printed


def test_recording_without_outside_ranges_does_not_mention_them(tmp_path, capsys):
    export_with_single_pictures(tmp_path / "a.sqlite", [])
    print_recorded(terminal(piped_width=140), recorded_facts(read_nsys(tmp_path / "a.sqlite")))
    assert "outside" not in capsys.readouterr().out


def test_process_without_a_range_named_run_has_no_outside_ranges(tmp_path):
    export_with_single_pictures(tmp_path / "a.sqlite", [END + 10 * MS], run=False)
    (run,) = read_nsys(tmp_path / "a.sqlite")
    assert (run.outside, run.frames) == (False, 41)


@pytest.mark.parametrize("start", [-20 * MS, END + 10 * MS])
@pytest.mark.parametrize(("ranges", "outside"), [(["read"], 0), (["read", "infer"], 1)])
def test_reads_of_a_camera_outside_the_loop_belong_to_the_run(tmp_path, start, ranges, outside):
    """A thread that only reads is a camera's thread. The run includes all reads of this thread."""
    path = tmp_path / "a.sqlite"
    export_with_single_pictures(path, [])
    ranges_of_run = read_nsys(path)[0].ranges
    path.unlink()
    export_with_single_pictures(path, [start], ranges=ranges, kernels=False)
    runs = read_nsys(path)
    assert [run.outside for run in runs] == [False] + [True] * outside
    assert runs[0].ranges == ranges_of_run + (not outside)


def test_open_range_outside_of_runs_is_counted(tmp_path):
    path = tmp_path / "a.sqlite"
    export_with_single_pictures(path, [END + 10 * MS])
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("update NVTX_EVENTS set end = null where start > ?", (END + 12 * MS,))
    _, outside = read_nsys(path)
    assert (outside.ranges, outside.open) == (4, 1)


def test_report_is_exported_by_the_installed_nsys(tmp_path, monkeypatch):
    export(tmp_path / "made.sqlite", LOAD)
    report = tmp_path / "run.nsys-rep"
    report.touch()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(UsageError, match="nsys export --type"):
        read_nsys(report)
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/nsys"
    program.write_text(f'#!/bin/sh\n/bin/cp {tmp_path}/made.sqlite "$7"\n')
    program.chmod(0o755)
    assert read_nsys(report)[0].frames == 40
    program.write_text("#!/bin/sh\necho 'no report at all' >&2\nexit 1\n")
    with pytest.raises(UsageError, match="no report at all"):
        read_nsys(report)
