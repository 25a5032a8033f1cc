"""Where a source's results go: names and folders, settled before anything is written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from detector.config.schema import SAVES, OutputConfig
from detector.errors import OutputError, UsageError
from detector.types import SourceInfo

LONGEST_STEM = 200  # bytes of a source's name in that of its session
VIDEO_SUFFIXES = (".mp4", ".m4v", ".mov", ".mkv")
ROW_SUFFIXES = {
    ".jsonl": "jsonl",
    ".csv": "csv",
    ".json": "coco",
    ".txt": "mot",
}  # -o FILE alone writes that alone


def stem_of(spec: str) -> str:
    """The IN of IN-ENGINE-detected: the file's stem, or the folder's name for a folder or a glob."""
    path = Path(spec)
    if any(sign in spec for sign in "*?[") and not os.path.exists(path):
        path = path.parent
    if os.path.isdir(path):  # Path.is_dir raises where a name is too long
        return path.resolve().name or "root"
    return path.stem or "input"


def session_name(spec: str, engine: str) -> str:
    """IN-ENGINE, with an IN that leaves room for the rest: a file's name may fill the 255 bytes alone."""
    stem = stem_of(spec)
    while len(os.fsencode(stem)) > LONGEST_STEM:
        stem = stem[:-1]
    return f"{stem}-{engine}"


class OutputPlan:
    """Hands out the paths of each source; no two sources of a run share one."""

    def __init__(self, config: OutputConfig, engine: str, specs: Sequence[str]) -> None:
        self._config = config
        self._engine = engine
        self._specs = specs
        self._taken: set[Path] = set()
        self._file = self._target_file()

    def _target_file(self) -> Path | None:
        """-o as a file, or None where it is a folder or not given."""
        output = self._config.output
        if output == "-":
            raise UsageError(
                "--output -: results do not go to standard output; give a file (--json prints a summary)"
            )
        if (
            output is None
            or output.endswith(os.sep)
            or Path(output).is_dir()
            or not Path(output).suffix
        ):
            return None
        if len(self._specs) > 1:
            raise UsageError(
                f"--output {output}: {len(self._specs)} sources need a folder: -o {Path(output).stem}/"
            )
        path = Path(output)
        if path.suffix.lower() not in (*VIDEO_SUFFIXES, *ROW_SUFFIXES):
            known = ", ".join((*VIDEO_SUFFIXES, *ROW_SUFFIXES))
            raise UsageError(
                f"--output {output}: cannot write {path.suffix}; known: {known}, or a folder: -o DIR/"
            )
        return path

    def paths(self, spec: str, info: SourceInfo) -> dict[str, Path]:
        """Output name -> final path, in the order in which the sinks are to be opened."""
        saves = self._saves(info)
        folder, stem = self._place(spec)
        for number in range(1, 10_000):
            numbered = stem if number == 1 else f"{stem}-{number}"
            paths = {
                name: self._named(name) or folder / (numbered + self._suffix(name))
                for name in saves
            }
            if not self._taken.intersection(paths.values()):
                break
        self._taken.update(paths.values())
        for path in paths.values():
            self._refuse_sources(path)
        return paths

    def _saves(self, info: SourceInfo) -> list[str]:
        pictures = info.kind == "pictures"
        chosen = self._config.save
        if chosen is None and self._file is not None and self._file.suffix.lower() in ROW_SUFFIXES:
            chosen = (ROW_SUFFIXES[self._file.suffix.lower()],)
        if chosen is None and pictures and self._file is not None and not self._config.no_video:
            folder = f"{self._file.with_suffix('')}{os.sep}"
            raise UsageError(
                f"--output {self._file}: pictures make no video; give a folder: -o {folder}"
            )
        if chosen is None:
            chosen = ("pictures" if pictures else "video", "jsonl")
        if pictures and "video" in chosen:
            raise UsageError("--save video needs a video; for pictures use --save pictures")
        if self._config.no_video:
            chosen = tuple(name for name in chosen if name not in ("video", "pictures"))
        # Cheap rows first: a full disk is then met by the video, and the rows of its frames are there.
        return [name for name in reversed(SAVES) if name in chosen]

    def _place(self, spec: str) -> tuple[Path, str]:
        if self._file is not None:
            return self._file.parent, self._file.stem
        folder = Path(self._config.output) if self._config.output else Path()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"{folder}: the output folder cannot be made: {error.strerror}; choose another"
            ) from error
        return folder, f"{stem_of(spec)}-{self._engine}-detected"

    def _named(self, name: str) -> Path | None:
        """The path as given with -o, where it is of this output's own kind."""
        if self._file is None:
            return None
        suffix = self._file.suffix.lower()
        own = suffix in VIDEO_SUFFIXES if name == "video" else ROW_SUFFIXES.get(suffix) == name
        return self._file if own else None

    def _suffix(self, name: str) -> str:
        from detector import sinks

        return sinks.find(name).suffix

    def _refuse_sources(self, path: Path) -> None:
        for spec in self._specs:
            try:
                same = os.path.samefile(path, spec)
            except OSError:
                same = False
            if same:
                raise UsageError(
                    f"{path}: is the source itself and would be lost; choose another with -o"
                )
