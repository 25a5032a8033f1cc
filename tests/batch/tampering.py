"""Tamper with the folder of a job: its markers, manifest, settings, parts and dataset.

Each case changes the folder of a finished job and then runs a command on it. The command must end
with a documented exit code and one line, must change nothing outside the folder, and must not count
damaged items as done. ``scripts/batch_check tampered`` runs hundreds of cases; a test runs a few.
"""

import hashlib
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from detector.batch.dataset import is_installed, partition
from detector.batch.layout import FILES, LOCK, MARKER, SCRATCH
from detector.batch.pieces import folder_name
from tests.attacks.case import HANDLED
from tests.attacks.mutate import VALUES, damage, damage_json
from tests.golden import inputs

CLIPS = ("a.mp4", "sub/b.mp4", "sub/deep/c.mp4")
BAD = "bad.mp4"  # not a video, so the item fails
OUT = "out"
SETTINGS = ("--engine", "null", "--model", "dots.onnx", "--engines-dir", "engines", "--no-video")
ROWS = "detections.jsonl"
LETTER = b"Dear Ada,\n"
PATIENCE_S = 120.0
# Names that lead out of a folder, and names that no item has.
OUTSIDE = (
    "../letter.txt", "../../home/victim", "/etc/passwd", "../in/a.mp4", "..", ".", "", "/", "a//b",
    "sub/../../home/x", "\x1b[2J", "\x00", "<script>alert(1)</script>", "=HYPERLINK(1)", "~",
    "a" * 5000, "\ud800", "{}", "%s%n",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TamperedJob:
    place: Path
    rows: Mapping[str, bytes]

    @property
    def out(self) -> Path:
        return self.place / OUT

    @property
    def backup(self) -> Path:
        return self.place.with_name(f"{self.place.name}-backup")


@dataclass(slots=True)
class CaseResult:
    change: str
    words: tuple[str, ...]
    code: int
    faults: list[str] = field(default_factory=list)


def make_job(place: Path, *, shards: bool = False) -> TamperedJob:
    for number, name in enumerate(CLIPS):
        path = place / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        inputs.clip(path, "mpeg4", "yuv420p", 4 + number)
    (place / "in" / BAD).write_bytes(b"no video at all" * 20)
    inputs.dots(place / "dots.onnx")
    (place / "home/victim").mkdir(parents=True)
    (place / "home/victim/done.json").write_bytes(b"{}")
    (place / "home/victim/detections.parquet").write_bytes(b"mine")
    (place / "letter.txt").write_bytes(LETTER)
    divided = [("--shard", f"{number}/2") for number in (1, 2)] if shards else [()]
    for more in divided:
        done = run(place, "in", *SETTINGS, "--save", "jsonl,csv", *more)
        assert done.returncode in (0, 3, 7), done.stderr
    rows = {name: (place / OUT / FILES / name / ROWS).read_bytes() for name in CLIPS}
    job = TamperedJob(place, rows)
    shutil.copytree(place, job.backup, symlinks=True)
    return job


def run(place: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    env = {
        **os.environ,
        "DETECT_VIDEO_SELF_TIMING": "0",
        "HOME": str(place / "home"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "detector", "batch", *words, "-o", OUT]
    env["PYTHONPATH"] = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        command, cwd=place, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        process.returncode = 124
    return subprocess.CompletedProcess(command, process.returncode, out, err)


# ---- the harm


class Harm:
    def __init__(self, random: Random, job: TamperedJob) -> None:
        self.random, self.out = random, job.out
        self.item = random.choice(CLIPS)

    @property
    def marker(self) -> Path:
        return self.out / FILES / self.item / MARKER

    def manifests(self) -> list[Path]:
        return sorted(self.out.glob("manifest*.sqlite"))

    def marker_or_settings(self) -> Path:
        return self.random.choice((self.marker, self.out / "job.json"))

    def own_file(self) -> Path:
        names = ("job.json", "settings.yaml", "failures.jsonl", LOCK)
        return self.random.choice([*(self.out / name for name in names), *self.manifests()])

    def document(self, path: Path) -> dict[str, object]:
        found: dict[str, object] = json.loads(path.read_text())
        return found

    def sql(self, *statements: str | tuple[str, tuple[object, ...]]) -> None:
        """Run the statements on each manifest; ignore errors of SQLite."""
        for path in self.manifests():
            with closing(sqlite3.connect(path)) as manifest, suppress(sqlite3.Error):
                for one in statements:
                    manifest.execute(*((one,) if isinstance(one, str) else one))
                manifest.commit()

    def outside(self) -> Path:
        return self.out.parent / self.random.choice(
            ("letter.txt", "home/victim", "home/nowhere", "in/a.mp4", "home")
        )

    def link(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove(path)
        path.symlink_to(self.outside())


def document_changed(harm: Harm) -> None:
    path = harm.marker_or_settings()
    path.write_bytes(damage_json(harm.random, harm.document(path)))


def document_bytes(harm: Harm) -> None:
    path = harm.marker_or_settings()
    path.write_bytes(damage(harm.random, path.read_bytes()))


def document_of_another_version(harm: Harm) -> None:
    path = harm.marker_or_settings()
    changes = {"future": [1], "detect_video": "99.0", "digest": "0" * 32}
    document = harm.document(path) | changes | {"schema": harm.random.choice((0, 2, 99, "1"))}
    path.write_text(json.dumps(document))


def marker_of_another(harm: Harm) -> None:
    other = harm.random.choice([name for name in CLIPS if name != harm.item])
    shutil.copyfile(harm.out / FILES / other / MARKER, harm.marker)


def marker_renamed(harm: Harm) -> None:
    """Replace the name in the marker by an item's name or by a path outside the folder."""
    document = harm.document(harm.marker)
    document["name"] = harm.random.choice((*OUTSIDE, *CLIPS))
    harm.marker.write_text(json.dumps(document))
    if harm.random.random() < 0.7:
        for path in harm.manifests():
            path.unlink()


def marker_of_outputs_elsewhere(harm: Harm) -> None:
    document = harm.document(harm.marker)
    document["outputs"] = {"jsonl": harm.random.choice(OUTSIDE)}
    harm.marker.write_text(json.dumps(document))


def marker_no_file(harm: Harm) -> None:
    harm.marker.unlink()
    change = harm.random.randrange(4)
    if change == 0:
        harm.marker.mkdir()
    elif change == 1:
        os.mkfifo(harm.marker)
    elif change == 2:
        harm.marker.touch()
    else:
        harm.marker.symlink_to("/dev/zero")


def marker_huge(harm: Harm) -> None:
    with harm.marker.open("r+b") as file:
        file.truncate(harm.random.choice((5 << 20, 1 << 32)))


def results_gone(harm: Harm) -> None:
    (harm.marker.parent / ROWS).unlink()


def results_cut(harm: Harm) -> None:
    path = harm.marker.parent / ROWS
    data = path.read_bytes()
    path.write_bytes(data[: harm.random.randrange(len(data))])


def results_linked(harm: Harm) -> None:
    harm.link(harm.marker.parent / ROWS)


def results_swapped(harm: Harm) -> None:
    one, other = (harm.out / FILES / name for name in harm.random.sample(CLIPS, 2))
    aside = harm.out / "aside"
    if one not in other.parents and other not in one.parents:
        one.rename(aside)
        other.rename(one)
        aside.rename(other)


def folder_linked(harm: Harm) -> None:
    harm.link(harm.random.choice((harm.marker.parent, harm.out / FILES / "sub", harm.out / FILES)))


def scratch_linked(harm: Harm) -> None:
    """Replace the scratch folders of an item and of its parts by links. Remove the results."""
    digest = hashlib.sha256(harm.item.encode()).hexdigest()[:16]
    harm.link(harm.out / f"{SCRATCH}{digest}")
    key = harm.document(harm.marker)["key"]
    harm.link(harm.out / folder_name(harm.item, str(key)))
    shutil.rmtree(harm.marker.parent)


def dataset_linked(harm: Harm) -> None:
    place = partition(str(harm.out), harm.item)
    harm.link(harm.random.choice((place, place.parent)))
    if harm.random.random() < 0.7:
        harm.marker.unlink()


def dataset_spoilt(harm: Harm) -> None:
    place = partition(str(harm.out), harm.item)
    if not place.is_dir():
        return
    (file,) = place.iterdir()
    change = harm.random.randrange(3)
    if change == 0:
        file.unlink()
    elif change == 1:
        file.write_bytes(b"")
    else:
        shutil.rmtree(place)
        place.write_bytes(b"a file")


def own_file_linked(harm: Harm) -> None:
    path = harm.own_file()
    data = path.read_bytes() if path.is_file() else b""
    harm.link(path)
    if harm.random.random() < 0.5:  # link to a copy of the real file, which is valid
        path.unlink(missing_ok=True)
        (harm.out.parent / "home/copy").write_bytes(data)
        path.symlink_to(harm.out.parent / "home/copy")


def own_file_special(harm: Harm) -> None:
    path = harm.own_file()
    path.unlink(missing_ok=True)
    harm.random.choice((os.mkfifo, os.mkdir, Path.touch))(path)  # type: ignore[operator]


def job_values(harm: Harm) -> None:
    """Set an option in job.json to a value of another type, or to a path outside the folder."""
    path, random = harm.out / "job.json", harm.random
    document = json.loads(path.read_text())
    group = random.choice(("config", "asked", "flags"))
    inside = document[group]
    if group != "flags":
        inside = inside[random.choice(sorted(inside))]
    known = sorted(inside) or ["conf"]
    inside[random.choice(known)] = random.choice((*VALUES, *OUTSIDE))
    path.write_text(json.dumps(document))


def job_sources(harm: Harm) -> None:
    path = harm.out / "job.json"
    document = harm.document(path)
    document["sources"] = harm.random.choice(
        ([], [""], ["\x00"], ["absent"], ["/"[:0]], ["in", "in"], ["in/a.mp4"] * 1000, ["../in"])
    )
    path.write_text(json.dumps(document))


def manifest_bytes(harm: Harm) -> None:
    for path in harm.manifests():
        path.write_bytes(damage(harm.random, path.read_bytes()))


def manifest_cut(harm: Harm) -> None:
    for path in harm.manifests():
        os.truncate(path, harm.random.choice((0, 1, 99, 100, 4096, path.stat().st_size - 1)))


def manifest_no_database(harm: Harm) -> None:
    for path in harm.manifests():
        path.write_bytes(
            harm.random.choice((b"{}", b"\x00" * 8192, b"SQLite format 3\x00", LETTER))
        )


def manifest_names(harm: Harm) -> None:
    """Rename an item in the manifest to a path outside the folder or to a name that no item has."""
    name = harm.random.choice((*OUTSIDE, "sub", "a.mp4/x", "x/y/z"))
    with suppress(UnicodeEncodeError):
        name.encode()
        harm.sql(("UPDATE OR REPLACE items SET name = ? WHERE name = ?", (name, harm.item)))
    if harm.random.random() < 0.5 and harm.marker.exists():
        harm.marker.unlink()


def manifest_vanished(harm: Harm) -> None:
    """Add an item of a missing source, with a name that leads out of the folder."""
    name = harm.random.choice([one for one in OUTSIDE if one.isascii()])
    harm.sql(
        (
            "INSERT INTO items (name, path, size, version, key, state) VALUES (?, ?, 1, '', '', ?)",
            (name, "/gone.mp4", harm.random.choice(("done", "failed", "todo", "other"))),
        )
    )


def manifest_types(harm: Harm) -> None:
    columns = "path size version key state tries frames seconds damaged error exit_code finished"
    column = harm.random.choice(columns.split())
    value = harm.random.choice((b"\xff\xfe", "x", "", -1, 1e308, 2**62, 0.5, b"", "\x1b[2J", None))
    harm.sql((f"UPDATE items SET {column} = ? WHERE name = ?", (value, harm.item)))


def manifest_states(harm: Harm) -> None:
    """Mark one or all items as done, or all as not done; give them wrong keys; or delete them."""
    harm.sql(
        harm.random.choice(
            (
                f"UPDATE items SET state = 'done' WHERE name = '{BAD}'",
                "UPDATE items SET state = 'done', key = 'x'",
                "UPDATE items SET state = 'DONE'",
                "UPDATE items SET state = 'todo'",
                "UPDATE items SET key = (SELECT key FROM items LIMIT 1)",
                "DELETE FROM items",
            )
        )
    )
    if harm.random.random() < 0.7:
        harm.marker.unlink()


def manifest_paths(harm: Harm) -> None:
    harm.sql(
        "INSERT INTO items SELECT 'twice/' || name, path, size, version, key, state, tries, "
        "frames, seconds, damaged, error, exit_code, finished FROM items "
        f"WHERE name = '{harm.item}'"
    )


def manifest_schema(harm: Harm) -> None:
    """Add a trigger or a column, rename a column, or drop or replace a table."""
    harm.sql(
        *harm.random.choice(
            (
                ("CREATE TRIGGER t BEFORE INSERT ON items BEGIN SELECT RAISE(IGNORE); END",),
                ("CREATE TRIGGER t AFTER UPDATE ON items BEGIN DELETE FROM items; END",),
                ("CREATE TRIGGER t BEFORE DELETE ON refused BEGIN SELECT RAISE(FAIL, 'no'); END",),
                ("DROP TABLE items", "CREATE VIEW items AS SELECT 'a.mp4' AS name"),
                (
                    "DROP TABLE facts",
                    "CREATE VIEW facts AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 "
                    "FROM n) SELECT 'settings' AS name, x AS value FROM n",
                ),
                ("DROP TABLE refused",),
                ("ALTER TABLE items RENAME COLUMN key TO other",),
                ("ALTER TABLE items ADD COLUMN more TEXT",),
                ("DROP TABLE facts", "CREATE TABLE facts (name, value)"),
            )
        )
    )


def manifest_version(harm: Harm) -> None:
    harm.sql(f"PRAGMA user_version = {harm.random.choice((0, 2, 99, -1))}")


def manifest_facts(harm: Harm) -> None:
    names = ("settings", "progress", "report", "found/a.mp4")
    values = ("{", "[]", "null", '{"a": 1}', "[" * 5000, b"\xff", "", 5, "9" * 400, '"\\ud800"')
    harm.sql(
        (
            "INSERT OR REPLACE INTO facts VALUES (?, ?)",
            (harm.random.choice(names), harm.random.choice(values)),
        )
    )


def manifest_refused(harm: Harm) -> None:
    harm.sql(
        (
            "INSERT OR REPLACE INTO refused VALUES (?, ?, ?)",
            (
                harm.random.choice((*(one for one in OUTSIDE if one.isascii()), b"\xff", 5)),
                harm.random.choice(("\x1b]0;x\x07", b"\xff", 5, "<b>")),
                harm.random.choice((1, -5, 2**40, "x", 0)),
            ),
        )
    )


def manifest_journal(harm: Harm) -> None:
    """Forge the journal of an unfinished transaction. It names a file outside the folder.
    SQLite would delete that file after rolling the transaction back."""
    victim = str(harm.out.parent / "letter.txt").encode()
    for path in harm.manifests():
        harm.random.choice((_journal_of_victim, _journal_of_noise, _journal_linked))(
            harm, path.with_name(f"{path.name}-journal"), victim
        )


def _journal_of_victim(harm: Harm, path: Path, victim: bytes) -> None:
    """Write a journal that ends with the record that SQLite's ``writeSuperJournal`` writes."""
    magic = bytes.fromhex("d9d505f920a163d7")
    size = harm.random.choice((512, 4096))
    head = magic + (0).to_bytes(4, "big") * 2 + (3).to_bytes(4, "big") + (size).to_bytes(4, "big")
    head += (4096).to_bytes(4, "big")
    total = sum(byte - 256 if byte > 127 else byte for byte in victim) % 2**32
    tail = (1 << 30).to_bytes(4, "big") + victim + len(victim).to_bytes(4, "big")
    path.write_bytes(head.ljust(size, b"\0") + tail + total.to_bytes(4, "big") + magic)


def _journal_of_noise(harm: Harm, path: Path, victim: bytes) -> None:
    magic = bytes.fromhex("d9d505f920a163d7")
    path.write_bytes(magic + harm.random.randbytes(harm.random.choice((0, 20, 504, 9000))))


def _journal_linked(harm: Harm, path: Path, victim: bytes) -> None:
    path.symlink_to(victim.decode())


def failures_changed(harm: Harm) -> None:
    path = harm.out / "failures.jsonl"
    path.write_bytes(harm.random.choice((b"", b"{", b"\xff" * 100, b'{"name": "../x"}\n' * 1000)))


def parts_made_up(harm: Harm) -> None:
    """Forge an item's parts, as a killed job would leave them, but with a damaged plan."""
    key = str(harm.document(harm.marker)["key"])
    folder = harm.out / folder_name(harm.item, key)
    (folder / "part-0").mkdir(parents=True)
    plan = {"schema": 1, "key": key, "parts": [{"number": 0, "of": 1, "frames": 4}]}
    (folder / "plan.json").write_bytes(damage_json(harm.random, plan))
    shutil.copyfile(harm.marker, folder / "part-0/record.json")
    (folder / "part-0/part.json").write_bytes(b'{"video": "../../../letter.txt"}')
    shutil.rmtree(harm.marker.parent)


HARMS: tuple[Callable[[Harm], None], ...] = (
    *(document_changed, document_bytes, document_of_another_version, marker_of_another),
    *(marker_renamed, marker_of_outputs_elsewhere, marker_no_file, marker_huge),
    *(results_gone, results_cut, results_linked, results_swapped, folder_linked, scratch_linked),
    *(dataset_linked, dataset_spoilt, own_file_linked, own_file_special),
    *(job_values, job_sources, manifest_bytes, manifest_cut),
    *(manifest_no_database, manifest_names, manifest_vanished, manifest_types, manifest_states),
    *(manifest_paths, manifest_schema, manifest_version, manifest_facts, manifest_refused),
    *(manifest_journal, failures_changed, parts_made_up),
)


# ---- a case


def try_case(job: TamperedJob, seed: int, number: int) -> CaseResult:
    """Run case ``number`` of a seed. The number also chooses the kind of harm."""
    random = Random(f"{seed}/tampered/{number}")
    shutil.rmtree(job.place)
    shutil.copytree(job.backup, job.place, symlinks=True)
    change = HARMS[number % len(HARMS)]
    change(Harm(random, job))
    return _type_and_judge(job, change.__name__, random)


def try_harm(job: TamperedJob, change: Callable[[Harm], None], seed: int) -> CaseResult:
    shutil.rmtree(job.place)
    shutil.copytree(job.backup, job.place, symlinks=True)
    change(Harm(Random(seed), job))
    return _judge(job, change.__name__, ("--resume",))


def _type_and_judge(job: TamperedJob, change: str, random: Random) -> CaseResult:
    words = random.choice(
        (("--resume",), ("--resume",), ("--resume",), ("--resume", "--prune"), ("--status",),
         ("--dry-run",), ("--prune",), ("--resume", "--split", "0.1", "--workers", "2"))
    )  # fmt: skip
    if random.random() < 0.5:
        words += ("--json",)
    return _judge(job, change, words)


def _judge(job: TamperedJob, change: str, words: tuple[str, ...]) -> CaseResult:
    before = outside(job)
    done = run(job.place, *words)
    result = CaseResult(change, words, done.returncode)
    result.faults += _faults_of_end(done)
    result.faults += _faults_outside(job, before)
    if done.returncode in (0, 7) and "--resume" in words:
        result.faults += _faults_of_results(job)
    elif not result.faults:
        result.faults += _faults_of_cure(job, before, done)
    return result


def outside(job: TamperedJob) -> dict[str, str]:
    found = {}
    for path in job.place.rglob("*"):
        name = path.relative_to(job.place).as_posix()
        if name.startswith((f"{OUT}/", "engines", "home/.cache")) or name == OUT:
            continue
        if path.is_symlink():
            found[name] = f"link {os.readlink(path)}"
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            found[name] = "folder"
    return found


def _faults_outside(job: TamperedJob, before: Mapping[str, str]) -> Iterator[str]:
    after = outside(job)
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            change = "gone" if name not in after else "new" if name not in before else "changed"
            yield f"outside the folder, {name} is {change}"


TERMINAL_CONTROLS = re.compile(rb"[\x00\x07\x08\x1b]|\xc2[\x80-\x9f]")


def _faults_of_end(done: subprocess.CompletedProcess[bytes]) -> Iterator[str]:
    if done.returncode not in HANDLED:
        last = done.stderr.decode(errors="replace").strip()[-200:]
        yield f"exit {done.returncode}: {last}"
    if b"Traceback" in done.stderr + done.stdout:
        yield "a traceback"
    if b"internal error" in done.stderr + done.stdout:
        found = re.search(rb".*internal error.*", done.stderr + done.stdout)
        yield f"an internal error: {found[0].decode(errors='replace')[:200] if found else ''}"
    if TERMINAL_CONTROLS.search(done.stdout + done.stderr):
        yield "terminal control characters were printed"


def _faults_of_results(job: TamperedJob) -> Iterator[str]:
    """Check that each item has the rows of the original job, in its folder and in the dataset."""
    import pyarrow.parquet

    for name, rows in job.rows.items():
        path = job.out / FILES / name / ROWS
        if path.is_symlink() or not path.is_file() or path.read_bytes() != rows:
            yield f"{name}: called done, but its rows differ from the original job's"
        if not is_installed():
            continue
        wanted = sum(len(json.loads(line)["detections"]) for line in rows.splitlines())
        place = partition(str(job.out), name)
        try:
            (file,) = place.iterdir()
            got = pyarrow.parquet.read_table(file, partitioning=None).num_rows
        except (OSError, ValueError) as error:
            yield f"{name}: its partition cannot be read: {error}"
            continue
        if got != wanted:
            yield f"{name}: {got} of {wanted} rows in the dataset"


def _faults_of_cure(
    job: TamperedJob, before: Mapping[str, str], done: subprocess.CompletedProcess[bytes]
) -> Iterator[str]:
    """Do what the message says: remove damaged files and resume. All results must then exist."""
    for path in [*job.out.glob("manifest*"), *job.out.glob("failures*")]:
        _remove(path)
    for path in (job.out / "job.json", job.out / "settings.yaml", job.out / LOCK):
        _remove(path)
    for path in [job.out, *job.out.rglob("*")]:
        if path.is_symlink():
            path.unlink()
    again = run(job.place, "in", *SETTINGS, "--save", "jsonl,csv", "--resume")
    if again.returncode != 7:
        message = again.stderr.decode(errors="replace").strip()[-200:]
        yield f"after repair: exit {again.returncode}: {message}"
    yield from (f"after repair: {fault}" for fault in _faults_outside(job, before))
    if again.returncode in (0, 7):
        yield from (f"after repair: {fault}" for fault in _faults_of_results(job))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
