"""OUT/manifest.sqlite: the items of a job and the state of each.

It is an index. An item's marker decides whether the item is done, so nothing is lost if a crash
undoes a transaction. Only one process writes a manifest: each shard has its own.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from detector.batch.documents import BatchProgress, BatchReport, Failure, ItemRecord, JobSettings
from detector.batch.layout import named
from detector.batch.listing import Item, Shard
from detector.core.errors import OutputError, UsageError
from detector.core.session.codec import decode, from_json, to_json
from detector.core.session.document import Count
from detector.core.sinks._partial import explain

Fact = TypeVar("Fact", JobSettings, BatchProgress, BatchReport)

MANIFEST = "manifest"
VERSION = 1
TODO, DONE, FAILED = "todo", "done", "failed"
FOUND = "found/"  # the fact "found/NAME" tells how many detections of each class the item NAME has
_FACTS: dict[type[Any], str] = {
    JobSettings: "settings",
    BatchProgress: "progress",
    BatchReport: "report",
}
BUSY_S = 60.0  # how long reader and writer wait for each other

_TABLES = f"""
CREATE TABLE items (
    name TEXT PRIMARY KEY,
    path TEXT NOT NULL,
    size INTEGER NOT NULL,
    version TEXT NOT NULL,
    key TEXT NOT NULL,
    state TEXT NOT NULL,
    tries INTEGER NOT NULL DEFAULT 0,
    frames INTEGER NOT NULL DEFAULT 0,
    seconds REAL NOT NULL DEFAULT 0,
    damaged INTEGER NOT NULL DEFAULT 0,
    error TEXT,
    exit_code INTEGER NOT NULL DEFAULT 0,
    finished REAL
) WITHOUT ROWID;
CREATE TABLE refused (source TEXT PRIMARY KEY, error TEXT NOT NULL, exit_code INTEGER NOT NULL);
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
PRAGMA user_version = {VERSION};
"""


_SCHEMA_OF = "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"
# SQLite accepts any value in any column, so check types and ranges. Names are paths below the
# folder of results, so they must not lead out of it.
_ODD = f"""
SELECT 'items' FROM items WHERE
    typeof(name) || typeof(path) || typeof(version) || typeof(key) != 'texttexttexttext'
    OR state NOT IN ('{TODO}', '{DONE}', '{FAILED}')
    OR typeof(error) NOT IN ('text', 'null') OR typeof(finished) NOT IN ('real', 'null')
    OR typeof(seconds) != 'real' OR seconds NOT BETWEEN 0 AND 1e12
    OR typeof(size) || typeof(tries) || typeof(frames) || typeof(damaged) || typeof(exit_code)
        != 'integerintegerintegerintegerinteger'
    OR min(size, tries, frames, damaged, exit_code) < 0 OR exit_code > 255
    OR '/' || name || '/' GLOB '*//*' OR '/' || name || '/' GLOB '*/./*'
    OR '/' || name || '/' GLOB '*/../*' OR instr(name, char(0))
UNION ALL SELECT 'items' FROM items GROUP BY path HAVING count(*) > 1
UNION ALL SELECT 'items' FROM items AS a WHERE EXISTS (  -- one inside of another; '0' follows '/'
    SELECT 1 FROM items AS b WHERE b.name > a.name || '/' AND b.name < a.name || '0')
UNION ALL SELECT 'refused' FROM refused WHERE
    typeof(source) || typeof(error) != 'texttext' OR typeof(exit_code) != 'integer'
    OR exit_code NOT BETWEEN 0 AND 255
UNION ALL SELECT 'facts' FROM facts WHERE typeof(name) || typeof(value) != 'texttext'
LIMIT 1
"""
SUPER_JOURNAL = bytes.fromhex("d9d505f920a163d7")  # last bytes of a journal of several databases


class ManifestRow(NamedTuple):
    name: str
    path: str
    key: str
    state: str


class Manifest:
    """The state of all items. ``commit`` saves changes and syncs the disk, so call it rarely."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection

    @classmethod
    def open(cls, path: Path) -> Manifest:
        """Open the manifest, or create it. Raises OutputError; UsageError for another version."""
        try:
            _refuse_foreign(path)
            with ExitStack() as unless_opened:
                connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
                unless_opened.callback(connection.close)
                connection.execute("PRAGMA synchronous = NORMAL")
                if _is_empty(connection):
                    connection.executescript(f"BEGIN IMMEDIATE; {_TABLES} COMMIT;")
                cls._check(path, connection)
                connection.execute("BEGIN IMMEDIATE")
                unless_opened.pop_all()
        except (sqlite3.Error, OSError) as error:
            raise _unusable(path, error) from error
        return cls(path, connection)

    @classmethod
    @contextmanager
    def reading(cls, path: Path) -> Iterator[Manifest]:
        """Open a manifest that a job may be writing. It is not opened read-only, since SQLite may
        have to roll back a transaction."""
        with ExitStack() as at_end:
            try:
                _refuse_foreign(path)
                connection = sqlite3.connect(
                    f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=BUSY_S
                )
                at_end.callback(connection.close)
                if _is_empty(connection):  # the job was killed while it started
                    connection = sqlite3.connect(":memory:")
                    at_end.callback(connection.close)
                    connection.executescript(_TABLES)
                cls._check(path, connection)
            except (sqlite3.Error, OSError) as error:
                raise _unusable(path, error) from error
            try:
                yield cls(path, connection)
            except sqlite3.Error as error:
                raise _unusable(path, error) from error

    @staticmethod
    def _check(path: Path, connection: sqlite3.Connection) -> None:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version != VERSION:
            raise UsageError(
                f"{path}: the manifest's version is {version or 'none'}, but must be {VERSION}; "
                "move the file away and use --resume to rebuild it from the results"
            )

        if connection.execute(_SCHEMA_OF).fetchall() != _own_schema():
            raise sqlite3.DatabaseError("it has other tables than a manifest")
        if (odd := connection.execute(_ODD).fetchone()) is not None:
            raise sqlite3.DatabaseError(f"it holds invalid values in table {odd[0]}")

    def commit(self) -> None:
        with self._errors():
            self._connection.execute("COMMIT")
            self._connection.execute("BEGIN IMMEDIATE")

    def close(self) -> None:
        with closing(self._connection), self._errors():
            if self._connection.in_transaction:  # a full disk ends a transaction
                self._connection.execute("COMMIT")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise _unusable(self.path, error) from error

    def rows(self) -> Iterator[ManifestRow]:
        with self._errors():
            for row in self._connection.execute("SELECT name, path, key, state FROM items"):
                yield ManifestRow(*row)

    def names(self) -> dict[str, str]:
        with self._errors():
            return dict(self._connection.execute("SELECT path, name FROM items"))

    def plan(self, items: Iterable[tuple[Item, str]]) -> None:
        """Add these items, (item, key), as unfinished. Their earlier rows are replaced."""
        with self._errors():
            self._connection.executemany(
                "INSERT OR REPLACE INTO items (name, path, size, version, key, state) "
                f"VALUES (?, ?, ?, ?, ?, '{TODO}')",
                ((item.name, item.path, item.size, item.version, key) for item, key in items),
            )

    def forget(self, names: Iterable[str]) -> None:
        with self._errors():
            self._connection.executemany(
                "DELETE FROM items WHERE name = ?", ((name,) for name in names)
            )

    def refuse(self, failures: Iterable[Failure]) -> None:
        with self._errors():
            self._connection.execute("DELETE FROM refused")
            self._connection.executemany(
                "INSERT OR REPLACE INTO refused VALUES (?, ?, ?)",
                ((one.source, one.error, one.exit_code) for one in failures),
            )

    def item(self, name: str) -> tuple[Item, str]:
        with self._errors():
            found = self._connection.execute(
                "SELECT name, path, size, version, key FROM items WHERE name = ?", (name,)
            ).fetchone()
        return Item(*found[:4]), found[4]

    def finish(self, record: ItemRecord, tries: int) -> None:
        with self._errors():
            self._connection.execute(
                f"UPDATE items SET state = '{DONE}', version = ?, size = ?, key = ?, tries = ?, "
                "frames = ?, seconds = ?, damaged = ?, error = NULL, exit_code = ?, finished = ? "
                "WHERE name = ?",
                (
                    record.version,
                    record.size,
                    record.key,
                    tries,
                    record.frames,
                    record.seconds,
                    int(record.exit.code != 0),
                    record.exit.code,
                    record.finished,
                    record.name,
                ),
            )
        self._write_fact(f"{FOUND}{record.name}", json.dumps(record.classes))

    def set_aside(self, name: str, error: str, exit_code: int, tries: int) -> None:
        with self._errors():
            self._connection.execute(
                f"UPDATE items SET state = '{FAILED}', error = ?, exit_code = ?, tries = ?, "
                "finished = ? WHERE name = ?",
                (error, exit_code, tries, time.time(), name),
            )

    def work(self) -> tuple[int, float]:
        """Return frames and seconds of the items that are done."""
        with self._errors():
            frames, seconds = self._connection.execute(
                f"SELECT TOTAL(frames), TOTAL(seconds) FROM items WHERE state = '{DONE}'"
            ).fetchone()
        return int(frames), float(seconds)

    def failures(self) -> list[Failure]:
        """List failures of all runs: first the refused items, then the failed items by time."""
        with self._errors():
            refused = self._connection.execute(
                "SELECT source, error, exit_code FROM refused ORDER BY source"
            ).fetchall()
            failed = self._connection.execute(
                "SELECT path, error, tries, exit_code, name FROM items "
                f"WHERE state = '{FAILED}' ORDER BY finished, name"
            ).fetchall()
        return [
            *(Failure(source=row[0], error=row[1], tries=0, exit_code=row[2]) for row in refused),
            *(
                Failure(source=row[0], error=row[1], tries=row[2], exit_code=row[3], name=row[4])
                for row in failed
            ),
        ]

    def found(self) -> dict[str, tuple[bool, dict[str, int] | None]]:
        """Return the done items: name -> (is damaged, detections by class; None if not counted)."""
        with self._errors():
            rows = self._connection.execute(
                "SELECT items.name, damaged, value FROM items LEFT JOIN facts "
                f"ON facts.name = '{FOUND}' || items.name WHERE state = '{DONE}'"
            ).fetchall()
        return {
            name: (bool(damaged), text and decode(text.encode(), dict[str, Count], self.path))
            for name, damaged, text in rows
        }

    def write(self, document: JobSettings | BatchProgress | BatchReport) -> None:
        """Store the document in place of an earlier document of its type. The settings are also in
        job.json. They are stored here too, so that the manifest alone explains its items."""
        self._write_fact(_FACTS[type(document)], to_json(document))

    def read(self, kind: type[Fact]) -> Fact | None:
        with self._errors():
            found = self._connection.execute(
                "SELECT value FROM facts WHERE name = ?", (_FACTS[kind],)
            ).fetchone()
        return None if found is None else from_json(str(found[0]), kind, self.path)

    def _write_fact(self, name: str, value: str) -> None:
        with self._errors():
            self._connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))


# The manifests of a folder: one for the whole job, or one for each shard.


@contextmanager
def open_manifest(place: str, shard: Shard) -> Iterator[Manifest]:
    manifest = Manifest.open(Path(place, named(MANIFEST, ".sqlite", shard)))
    try:
        yield manifest
    finally:
        manifest.close()


def manifests(place: str) -> list[Path]:
    return sorted(Path(place).glob(f"{MANIFEST}*.sqlite"))


def known_names(place: str) -> dict[str, str]:
    """Return path -> name of the items of all shards, so that items keep their names."""
    names: dict[str, str] = {}
    for path in manifests(place):
        with Manifest.reading(path) as manifest:
            names.update(manifest.names())
    return names


@cache
def _own_schema() -> list[tuple[str, str, str]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(_TABLES)
        return connection.execute(_SCHEMA_OF).fetchall()


def _refuse_foreign(path: Path) -> None:
    """Raise OSError for links and special files: through a link, SQLite would write outside OUT."""
    for suffix in ("", "-journal", "-wal", "-shm"):
        try:
            about = os.lstat(f"{path}{suffix}")
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, f"{path.name}{suffix} is a link, or not a regular file")
    with suppress(FileNotFoundError), open(f"{path}-journal", "rb") as journal:
        journal.seek(max(0, journal.seek(0, os.SEEK_END) - len(SUPER_JOURNAL)))
        if journal.tell() and journal.read() == SUPER_JOURNAL:
            raise OSError(errno.EINVAL, f"{path.name}-journal names another file")


def _is_empty(connection: sqlite3.Connection) -> bool:
    (tables,) = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
    return not tables


def _unusable(path: Path, error: Exception) -> OutputError:
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
        return OutputError(explain(OSError(errno.ENOSPC, "disk full"), path))
    reason = getattr(error, "strerror", None) or str(error)
    return OutputError(
        f"{path}: cannot be used ({reason}); if it is damaged, move it (and its copy in a bucket) "
        "away and use --resume to rebuild it from the results"
    )
