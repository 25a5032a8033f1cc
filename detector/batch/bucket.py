"""Results in an object store: ``-o s3://bucket/prefix``.

    PREFIX/files/NAME/...      an item's outputs, and done.json, its marker, which is written last
    PREFIX/detections/...      the dataset
    PREFIX/job.json            the settings of all workers; written at the start, like settings.yaml
    PREFIX/manifest.sqlite     copied from this machine every minute and at the end
    PREFIX/failures.jsonl      copied at the same times

Object stores cannot rename and have no locks. So we remove an item's marker before we replace its
outputs, and write it after all outputs. An item without a marker is redone. SQLite needs a local
file, so the manifest and the lock are in a folder of this machine (``home``). A job on another
machine starts from the copies in the store. Markers show which items were done after the last copy.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from detector.batch import dataset
from detector.batch.documents import ItemRecord, JobSettings, Seal
from detector.batch.layout import FILES, MARKER, MARKER_BYTES, ROWS, SCRATCH, is_running, named
from detector.batch.listing import WHOLE, Shard
from detector.batch.stores import walk
from detector.core.errors import DetectVideoError, OutputError, SourceError, UsageError
from detector.core.errors.writing import temporary_folder, write_whole
from detector.core.session.codec import from_json, to_json
from detector.core.sources._addresses import STORES, Location, parse_address
from detector.core.sources._storage import ObjectInfo, explain, open_store, path_in_store, to_info

PART_BYTES = 16 << 20  # bytes per part; S3 takes a file smaller than two parts in one request
COPIED_EVERY_S = 60.0  # time between copies of a running job's own files
VERSIONS = "copies.json"  # in home: versions of the copies that this machine read or wrote
JOB = "job.json"
OWN = re.compile(r"job\.json|settings\.yaml|(manifest|failures)(-\d+-of-\d+)?\.(sqlite|jsonl)")


class BucketOutputs:
    """A prefix in a store. ``home`` is made by ``fetch_home``."""

    def __init__(self, place: str) -> None:
        parsed = parse_address(place)
        if parsed.scheme not in STORES:
            raise UsageError(f"{place}: web servers are read-only; give a folder, s3:// or gs://")
        self._base = parsed._replace(key=parsed.key.strip("/"))
        self.place = str(self._base).rstrip("/")
        self.home = str(_state_folder(self.place))
        self._markers: set[str] | None = None
        self._copied = float("-inf")

    def _at(self, *parts: str) -> Location:
        key = "/".join(filter(None, (self._base.key, *parts)))
        return self._base._replace(key=key)

    def _folder(self, *parts: str) -> Location:
        place = self._at(*parts)
        return place._replace(key=f"{place.key}/" if place.key else "")

    @property
    def _store(self) -> Any:
        return open_store(self._base)

    def begin(self, name: str) -> Path:
        self._discard_scratch(name)
        with _output_errors(self._base):
            return Path(tempfile.mkdtemp(prefix=self._scratch(name)))

    def _scratch(self, name: str) -> str:
        place, item = (hashlib.sha256(text.encode()).hexdigest() for text in (self.place, name))
        return f"{SCRATCH}{place[:8]}-{item[:16] if name else ''}"

    def _discard_scratch(self, name: str) -> None:
        """Remove this user's scratch folders of an item, or of all items if ``name`` is ""."""
        for path in Path(tempfile.gettempdir()).glob(f"{self._scratch(name)}*"):
            with suppress(OSError):
                if path.lstat().st_uid == os.getuid():
                    shutil.rmtree(path, ignore_errors=True)

    def commit(self, name: str, scratch: Path, record: ItemRecord) -> None:
        files = {
            path.relative_to(scratch).as_posix(): path
            for path in sorted(scratch.rglob("*"))
            if path.is_file()
        }
        with _output_errors(self._at(FILES, name)):
            self._clear(name, keep=files)
            for relative, path in files.items():
                self._put(path, self._at(FILES, name, relative))
            marker = path_in_store(self._at(FILES, name, MARKER))
            self._store.pipe_file(marker, to_json(record).encode())
        if self._markers is not None:
            self._markers.add(name)
        self._discard_scratch(name)

    def _put(self, path: Path, place: Location) -> None:
        self._store.put_file(str(path), path_in_store(place), chunksize=PART_BYTES)

    def _clear(self, name: str, keep: Iterable[str] = ()) -> None:
        folder = self._folder(FILES, name)
        there = [key[len(folder.key) :] for key, _ in walk(folder)]
        if MARKER in there:
            self._remove(self._at(FILES, name, MARKER))
        if self._markers is not None:
            self._markers.discard(name)
        for relative in {*there} - {MARKER, *keep}:
            self._remove(folder._replace(key=folder.key + relative))

    def _remove(self, place: Location) -> None:
        with suppress(FileNotFoundError):
            self._store.rm_file(path_in_store(place))

    def discard(self, name: str) -> None:
        self._discard_scratch(name)
        with suppress(Exception):  # the next try removes these files
            folder = self._folder(FILES, name)
            self._abort_uploads(folder)
            keys = [key for key, _ in walk(folder)]
            if keys and f"{folder.key}{MARKER}" not in keys:
                for key in keys:
                    self._remove(folder._replace(key=key))

    def discard_all(self) -> None:
        self._discard_scratch("")
        with suppress(Exception):
            self._abort_uploads(self._folder())

    def _abort_uploads(self, folder: Location) -> None:
        """Abort unfinished multipart uploads, which cost money. Google drops them after a week."""
        if folder.scheme != "s3":
            return
        bucket: dict[str, str] = {"Bucket": folder.host}
        marker: dict[str, str] = {}
        while True:
            page = self._store.call_s3(
                "list_multipart_uploads", **bucket, Prefix=folder.key, **marker
            )
            for one in page.get("Uploads", ()):
                if one["Key"].startswith(folder.key):
                    with suppress(FileNotFoundError):
                        self._store.call_s3(
                            "abort_multipart_upload",
                            **bucket,
                            Key=one["Key"],
                            UploadId=one["UploadId"],
                        )
            if not page.get("IsTruncated"):
                return
            marker = {
                "KeyMarker": page["NextKeyMarker"],
                "UploadIdMarker": page["NextUploadIdMarker"],
            }

    def has_marker(self, name: str) -> bool:
        if self._markers is None:
            folder, ending = self._folder(FILES), f"/{MARKER}"
            with _output_errors(folder):
                self._markers = {
                    key[len(folder.key) : -len(ending)]
                    for key, _ in walk(folder)
                    if key.endswith(ending)
                }
        return name in self._markers

    def is_done(self, name: str, key: str) -> bool:
        return self.has_marker(name)

    def is_whole(self, record: ItemRecord | Seal) -> bool:
        return True  # objects are never partial, and the marker is written last

    def read_marker(self, name: str) -> ItemRecord | None:
        place = self._at(FILES, name, MARKER)
        with _output_errors(place):
            try:
                data = self._store.cat_file(path_in_store(place), start=0, end=MARKER_BYTES)
            except FileNotFoundError:
                return None
        try:
            return from_json(data, ItemRecord, f"{name}/{MARKER}")
        except UsageError:
            return None

    def remove(self, name: str) -> None:
        with _output_errors(self._at(FILES, name)):
            self._clear(name)

    def _partition(self, name: str) -> Location:
        return self._at(dataset.partition("", name).as_posix(), dataset.FILE)

    def gather(self, name: str, rows: Path) -> None:
        place = self._partition(name)
        with _output_errors(place), temporary_folder() as folder:
            table = Path(folder, dataset.FILE)
            with table.open("xb") as file:
                dataset.write_table(file, rows)
            self._put(table, place)

    def gather_missing(self, names: Iterable[str], stopped: Callable[[], bool]) -> None:
        folder = self._folder(dataset.FOLDER)
        with _output_errors(folder):
            there = {key for key, _ in walk(folder)}
        for name in names:
            if stopped():
                return
            if self._partition(name).key in there:
                continue
            rows = self._at(FILES, name, ROWS)
            with _output_errors(rows), temporary_folder() as local:
                copy = Path(local, ROWS)
                with suppress(FileNotFoundError):
                    self._store.get_file(path_in_store(rows), str(copy))
                    self.gather(name, copy)

    def ungather(self, name: str) -> None:
        with _output_errors(self._base):
            self._remove(self._partition(name))

    def fetch_home(self) -> str:
        """Create ``home``, and update it from the store. If the store has no job, remove the files
        of an earlier job from ``home``."""
        home = Path(self.home)
        try:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"{home}: cannot be created: {error.strerror}; set XDG_STATE_HOME to a folder for "
                "the manifests of jobs"
            ) from error
        if is_running(self.home):
            return self.home  # home is newer than the copies
        there, seen = self._own_files(), self._seen()
        if JOB not in there:
            for path in home.iterdir():
                if OWN.fullmatch(path.name):
                    path.unlink(missing_ok=True)
            there, seen = {}, {}
        for name, about in there.items():
            if seen.get(name) == about.version and (home / name).exists():
                continue
            temporary = home / f".{name}.new"
            with _output_errors(self._at(name)):
                self._store.get_file(path_in_store(self._at(name)), str(temporary))
                os.replace(temporary, home / name)
            seen[name] = about.version
        self._keep_seen(seen)
        return self.home

    def _own_files(self) -> dict[str, ObjectInfo]:
        folder = self._folder()
        with _output_errors(folder):
            found = {key[len(folder.key) :]: about for key, about in walk(folder, flat=True)}
        return {name: about for name, about in found.items() if OWN.fullmatch(name)}

    def _seen(self) -> dict[str, str]:
        try:
            seen = json.loads(Path(self.home, VERSIONS).read_text())
        except (OSError, ValueError):
            return {}
        return seen if isinstance(seen, dict) else {}

    def _keep_seen(self, seen: dict[str, str]) -> None:
        write_whole(Path(self.home, VERSIONS), json.dumps(seen).encode(), ours=True)

    def publish(self, settings: JobSettings, *, first: bool) -> JobSettings:
        place = self._at(JOB)
        with _output_errors(place):
            data = to_json(settings).encode()
            if first and not self._create(place, data):
                standing = self._store.cat_file(path_in_store(place))
                write_whole(Path(self.home, JOB), standing, ours=True)
                return from_json(standing, JobSettings, str(place))
            if not first:
                self._store.pipe_file(path_in_store(place), data)
            self._copy("settings.yaml")
            self._note_seen(JOB)
        return settings

    def _create(self, place: Location, data: bytes) -> bool:
        """Create an object; return False if it exists. If the store cannot tell, overwrite it."""
        path = path_in_store(place)
        try:
            self._store.pipe_file(path, data, mode="create")
        except FileExistsError:
            return False
        except Exception as error:
            if "changed while" in explain(error, place.scheme).text:  # status 412: it exists
                return False
            if "NotImplemented" not in f"{error!r} {error.__cause__!r}":
                raise
            self._store.pipe_file(path, data)
        return True

    def keep_home(self, shard: Shard, *, last: bool = False) -> None:
        if not last and time.monotonic() - self._copied < COPIED_EVERY_S:
            return
        self._copied = time.monotonic()
        try:
            with _output_errors(self._base):
                self._copy_manifest(named("manifest", ".sqlite", shard))
                self._copy(named("failures", ".jsonl", shard))
                if last and shard == WHOLE:  # --prune also changes the manifests of shards
                    for path in Path(self.home).glob("manifest-*.sqlite"):
                        self._copy_manifest(path.name)
        except DetectVideoError:
            if last:
                raise

    def _copy_manifest(self, name: str) -> None:
        """Copy the committed state of a manifest; its file may also hold an open transaction."""
        source = Path(self.home, name)
        if not source.exists():
            return
        with temporary_folder() as folder:
            copy = Path(folder, name)
            with closing(sqlite3.connect(source)) as of, closing(sqlite3.connect(copy)) as to:
                of.backup(to)
            self._put(copy, self._at(name))
        self._note_seen(name)

    def _copy(self, name: str) -> None:
        path = Path(self.home, name)
        if path.exists():
            self._put(path, self._at(name))
            self._note_seen(name)

    def _note_seen(self, name: str) -> None:
        info = self._store.info(path_in_store(self._at(name)))
        self._keep_seen({**self._seen(), name: to_info(info).version})


def _state_folder(place: str) -> Path:
    """Return the local folder for ``place`` and this endpoint: bucket names may recur at others."""
    state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    digest = hashlib.sha256(f"{endpoint}\0{place}".encode()).hexdigest()[:16]
    tail = re.sub(r"[^A-Za-z0-9.-]+", "-", place)[-60:].strip("-.")
    return state / "detect-video" / "batch" / f"{tail}-{digest}"


@contextmanager
def _output_errors(place: Location) -> Iterator[None]:
    try:
        yield
    except SourceError as error:
        raise OutputError(str(error)) from error
    except DetectVideoError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
            hint = "; free disk space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
            raise OutputError(f"{error.filename}: {error.strerror}{hint}") from error
        text = explain(error, place.scheme).text
        raise OutputError(f"{place}: cannot be written: {text}") from error
