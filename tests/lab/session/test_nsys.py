"""nsys exports made by hand after the published schema: with all tables, with the fewest, and
exports of other programs."""

from __future__ import annotations

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


def export(path, one, *, registered=True, mark=True, extras=True, domain="detect-video"):
    """A recording of a run with known durations. ``registered``: texts by StringIds, as python's
    nvtx makes them."""
    activities = run_of(one)
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
        41: "loop " + " ".join(f"{n}={int(getattr(one.shape, n))}" for n in one.shape.__slots__),
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


ONE = load(
    40,
    shape(),
    read=0.002,
    preprocess=0.001,
    infer=0.004,
    head=0.001,
    nms=0.001,
    annotate=0.001,
    write=0.002,
)


@pytest.mark.parametrize("registered", [True, False])
def test_the_recording_says_what_the_run_was(tmp_path, registered):
    activities = export(tmp_path / "a.sqlite", ONE, registered=registered)
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
    assert facts["loop"]["requests"] == ONE.shape.requests
    assert facts["waits"] == {"worker-0": {"batch": pytest.approx(activities[1].end_ns / 1e9)}}
    # Each stage has the part within it. Calls on threads that are not ours are left out.
    assert facts["blocked"] == {
        "annotate": {"futex": pytest.approx(1e-6)},
        "write": {"futex": pytest.approx(0.001)},
    }
    assert facts["gpu"]["busy_share"] == pytest.approx(0.5)  # overlapping kernels count once
    stages = {row["name"]: row["share"] for row in facts["critical_path"]["stages"]}
    assert stages["infer"] + stages["head"] + stages["nms"] > 0.9  # 6 ms against 3 and 3
    json.dumps(facts)


def test_without_the_optional_tables(tmp_path):
    export(tmp_path / "a.sqlite", ONE, registered=False, mark=False, extras=False)
    facts = recording(tmp_path / "a.sqlite")
    assert facts["blocked"] == {}
    assert not facts["gpu"]["available"]
    assert "kernels" in facts["gpu"]["reason"]
    assert not facts["loop_is_known"]
    assert facts["critical_path"]["wall_s"] > 0


@pytest.mark.parametrize(
    ("loop", "batch", "threads"), [(shape(batch=4, images=16), 4, 3), (shape(sync=True), 1, 1)]
)
def test_batches_and_the_plain_loop_are_recognised(tmp_path, loop, batch, threads):
    one = load(40, loop, read=0.002, preprocess=0.001, infer=0.004, head=0.001, write=0.002)
    export(tmp_path / "a.sqlite", one, mark=False)
    (found,) = read_nsys(tmp_path / "a.sqlite")
    assert found.loop["batch"] == batch
    assert found.loop["sync"] == loop.sync
    assert len(found.columns["thread_names"]) == threads


def no_nvtx(path):
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("create table OSRT_API (start int)")


def other_columns(path):
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("create table NVTX_EVENTS (start int)")


def other_values(path):
    export(path, ONE)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("update NVTX_EVENTS set int64Value = 'many' where eventType = 59")


def changed(statement):
    def make(path):
        export(path, ONE)
        with closing(sqlite3.connect(path)) as database, database:
            for one in statement.split(";"):
                database.execute(one)

    return make


def other_bytes(path):
    """A schema that SQLite refuses with a message that is not UTF-8."""
    export(path, ONE)
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
    (no_nvtx, "no NVTX ranges"),
    (other_columns, "no such column"),
    (other_values, "damaged: int64Value"),
    (changed("update NVTX_EVENTS set int64Value = -5 where eventType = 59"), "damaged: int64Value"),
    (other_bytes, "not an SQLite export"),
    (lambda path: export(path, ONE, domain="somebody-else"), "no ranges of the domain"),
]


@pytest.mark.parametrize("statement", [SLOW, f"create view OSRT_API as {ENDLESS}"])
def test_what_a_database_would_compute_is_left_out(tmp_path, statement):
    changed(f"drop table OSRT_API; {statement}")(tmp_path / "a.sqlite")
    assert recording(tmp_path / "a.sqlite")["blocked"] == {}


def test_a_recording_that_takes_too_long_is_one_line(tmp_path, monkeypatch):
    export(tmp_path / "a.sqlite", ONE)
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
def test_calls_that_wait_for_each_other_in_a_circle_have_an_end(tmp_path, change):
    changed(f"update NVTX_EVENTS set {change} where end")(tmp_path / "a.sqlite")
    assert recording(tmp_path / "a.sqlite")["stages"]


@pytest.mark.parametrize(("making", "message"), FOREIGN)
def test_foreign_recording_raises_one_line_usage_error(tmp_path, making, message):
    making(tmp_path / "a.sqlite")
    with pytest.raises(UsageError, match=message) as caught:
        read_nsys(tmp_path / "a.sqlite")
    assert "\n" not in str(caught.value)


def test_a_database_that_another_program_writes(tmp_path):
    """For a database with a write-ahead log SQLite would leave extra files."""
    path = tmp_path / "a.sqlite"
    export(path, ONE)
    for mode in ("delete", "wal"):
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute(f"pragma journal_mode={mode}")
            database.execute("begin exclusive")
            with pytest.raises(UsageError, match="another program"):
                read_nsys(path)
    assert read_nsys(path)
    assert [*tmp_path.iterdir()] == [path]


def test_ranges_that_the_recording_cut_off_are_counted_and_left_out(tmp_path):
    activities = export(tmp_path / "a.sqlite", ONE)
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


def test_two_runs_of_one_process_are_read_separately(tmp_path):
    """Each has a range "run" and a mark with its own queue sizes before it."""
    activities = export(tmp_path / "a.sqlite", ONE)
    end = max(one.end_ns for one in activities)
    with closing(sqlite3.connect(tmp_path / "a.sqlite")) as database, database:
        sizes = " ".join(f"{n}={int(getattr(ONE.shape, n))}" for n in ONE.shape.__slots__)
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
                (2 * end, None, 60, tid, 50),  # had not ended when the recording did
            ],
        )
    one, two = read_nsys(tmp_path / "a.sqlite")
    assert (one.frames, two.frames) == (40, 40)
    assert (one.loop["queue_batches"], two.loop["queue_batches"]) == (2, 7)
    assert two.start_ns == 2 * end
    assert not two.kernels
    assert one.kernels


MS = 1_000_000
SINGLE = ("preprocess", "infer", "head", "nms")


def with_singles(path, at, *, run=True, kernels=True, ranges=SINGLE):
    """A recording with a run in a range "run", and single pictures at these moments (ns) on its
    main thread, a millisecond a call and a kernel in each. Returns the end of the run."""
    activities = export(path, ONE, extras=False)
    end = max(one.end_ns for one in activities)
    columns = "(start, end, eventType, globalTid, domainId, category, int64Value, textId)"
    insert = f"insert into NVTX_EVENTS {columns} values (?,?,?,?,5,?,?,?)"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("delete from NVTX_EVENTS where eventType = 59 and end is null")
        database.execute("insert into StringIds values (50, 'run')")
        numbers = dict(database.execute("select value, id from StringIds"))
        if run:
            database.execute(insert, (0, end, 60, PROCESS + 1, None, None, 50))
        for frame, start in enumerate(at):
            for step, stage in enumerate(ranges):
                first = start + step * MS
                row = (first, first + MS, 59, PROCESS + 1, 1, frame, numbers[stage])
                database.execute(insert, row)
        if kernels:
            database.execute(
                "create table CUPTI_ACTIVITY_KIND_KERNEL (start int, end int, globalPid int)"
            )
            rows = [(start + MS, start + 2 * MS, PROCESS) for start in [*at, end // 2]]
            database.executemany("insert into CUPTI_ACTIVITY_KIND_KERNEL values (?,?,?)", rows)
    return end


@pytest.fixture
def after_the_run(tmp_path):
    path = tmp_path / "a.sqlite"
    end = with_singles(path, [])
    path.unlink()
    at = [end + 10 * MS, end + 20 * MS, end + 30 * MS]
    with_singles(path, at)
    return path


def test_ranges_outside_of_runs_are_listed_last(after_the_run):
    run, outside = read_nsys(after_the_run)
    assert (run.outside, outside.outside) == (False, True)
    assert (run.frames, outside.frames) == (40, 3)
    assert (outside.ranges, outside.open) == (12, 0)
    assert outside.process == run.process == PID
    assert outside.end_ns - outside.start_ns == 24 * MS
    assert set(outside.columns["thread_names"].tolist()) == {"main"}
    # It has no queues: the mark before the run says nothing of it.
    assert run.loop_is_known
    assert not outside.loop_is_known
    assert outside.loop["sync"]
    assert [len(one.kernels) for one in (run, outside)] == [1, 3]


def test_a_run_between_them_is_not_counted_with_them(tmp_path):
    """Calls and kernels of the pictures before and after the run are not the run's."""
    end = with_singles(tmp_path / "probe.sqlite", [])
    path = tmp_path / "a.sqlite"
    with_singles(path, [-20 * MS, end + 10 * MS])
    run, outside = read_nsys(path)
    assert (run.frames, outside.frames) == (40, 2)
    assert [len(one.kernels) for one in (run, outside)] == [1, 2]
    assert outside.start_ns == -20 * MS
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("update CUPTI_ACTIVITY_KIND_KERNEL set globalPid = null")
    assert [len(one.kernels) for one in read_nsys(path)] == [1, 2]


def test_the_tables_are_of_a_run_where_there_is_one(tmp_path):
    """That holds even if there were more single pictures than frames; their number shows them."""
    end = with_singles(tmp_path / "probe.sqlite", [])
    path = tmp_path / "a.sqlite"
    with_singles(path, [end + 10 * MS * number for number in range(1, 51)])
    facts = json.loads(to_json(recorded_facts(read_nsys(path))))
    assert facts["run"] == 1
    assert [one["outside"] for one in facts["runs"]] == [False, True]
    assert [one["frames"] for one in facts["runs"]] == [40, 50]
    shown = recorded_facts(read_nsys(path), 2)
    assert {row.step: row.count for row in shown.stages} == dict.fromkeys(SINGLE, 50)
    assert shown.critical_path is not None


@pytest.mark.parametrize("number", [None, 2])
def test_one_line_says_how_many_lie_outside_and_how_to_see_them(after_the_run, capsys, number):
    document = recorded_facts(read_nsys(after_the_run), number)
    print_recorded(terminal(piped_width=140), document)
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("12 ranges of process 77") == 1
    assert "--nsys-run 2" in shown.partition("12 ranges of process 77")[2]
    assert "queues" not in shown


def test_of_thousands_of_stages_the_longest_are_printed_and_the_rest_counted(tmp_path, capsys):
    """Another program numbered its ranges; printing all 15,000 rows took half a minute."""
    with_singles(tmp_path / "a.sqlite", [])
    document = recorded_facts(read_nsys(tmp_path / "a.sqlite"))
    stages = [replace(document.stages[0], step=f"step_{at}", total=at) for at in range(60)]
    waits = {f"thread_{at}": {"input": float(at)} for at in range(51)}
    print_recorded(terminal(piped_width=140), replace(document, stages=stages, waits=waits))
    printed = capsys.readouterr().out
    assert re.findall(r"step_\d+", printed) == [f"step_{at}" for at in range(10, 60)]
    assert re.findall(r"thread_\d+", printed) == [f"thread_{at}" for at in range(1, 51)]
    assert "10 shorter stages more with --json" in printed
    assert "1 shorter thread more with --json" in printed


def test_recording_without_outside_ranges_does_not_mention_them(tmp_path, capsys):
    with_singles(tmp_path / "a.sqlite", [])
    print_recorded(terminal(piped_width=140), recorded_facts(read_nsys(tmp_path / "a.sqlite")))
    assert "outside" not in capsys.readouterr().out


def test_a_process_without_any_run_has_nothing_outside(tmp_path):
    end = with_singles(tmp_path / "probe.sqlite", [])
    with_singles(tmp_path / "a.sqlite", [end + 10 * MS], run=False)
    (only,) = read_nsys(tmp_path / "a.sqlite")
    assert (only.outside, only.frames) == (False, 41)


@pytest.mark.parametrize("after", [-20 * MS, 10 * MS])
@pytest.mark.parametrize(("ranges", "outside"), [(["read"], 0), (["read", "infer"], 1)])
def test_what_a_camera_reads_beside_the_loop_is_the_runs(tmp_path, after, ranges, outside):
    """The camera is opened before the loop begins, and its thread only reads."""
    end = with_singles(tmp_path / "probe.sqlite", [])
    alone = read_nsys(tmp_path / "probe.sqlite")[0].ranges
    path = tmp_path / "a.sqlite"
    with_singles(path, [after if after < 0 else end + after], ranges=ranges, kernels=False)
    runs = read_nsys(path)
    assert [one.outside for one in runs] == [False] + [True] * outside
    assert runs[0].ranges == alone + (not outside)


def test_a_range_outside_that_the_recording_cut_off_is_counted(tmp_path):
    end = with_singles(tmp_path / "probe.sqlite", [])
    path = tmp_path / "a.sqlite"
    with_singles(path, [end + 10 * MS])
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("update NVTX_EVENTS set end = null where start > ?", (end + 12 * MS,))
    _, outside = read_nsys(path)
    assert (outside.ranges, outside.open) == (4, 1)


def test_a_report_is_exported_by_the_nsys_at_hand(tmp_path, monkeypatch):
    export(tmp_path / "made.sqlite", ONE)
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
