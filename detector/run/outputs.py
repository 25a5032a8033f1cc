"""Where a source's results go: names and folders, settled before anything is written.

Which outputs there are, which suffixes they take and which of them are the default is declared by
the sinks themselves (``sinks.base.Sink``); this file names none of them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from detector import sinks
from detector.config.schema import OutputConfig
from detector.errors import OutputError, UsageError
from detector.sinks.base import Sink
from detector.types import SourceInfo

LONGEST_STEM = 200  # bytes of a source's name in that of its session


def stem_of(spec: str) -> str:
    """The IN of IN-ENGINE-detected: a file's stem, or the name of a folder or of a glob's folder."""
    path = Path(spec)
    if any(sign in spec for sign in "*?[") and not os.path.exists(path):
        path = path.parent
    if os.path.isdir(path):  # Path.is_dir raises where a name is too long
        return path.resolve().name or "root"
    return path.stem or "input"


def session_name(spec: str, engine: str) -> str:
    """IN-ENGINE. A long IN is cut to leave room for the rest: a file's name may fill 255 bytes
    alone.
    """
    stem = stem_of(spec)
    while len(os.fsencode(stem)) > LONGEST_STEM:
        stem = stem[:-1]
    return f"{stem}-{engine}"


def _defaults_for(kind: str) -> list[type[Sink]]:
    """What is saved of a source of this kind without --save."""
    return [sink for sink in sinks.find_all() if kind in sink.default_for]


class OutputPlan:
    """Hands out the paths of each source. No two sources of a run share one."""

    def __init__(self, config: OutputConfig, engine: str, specs: Sequence[str]) -> None:
        self._config = config
        self._engine = engine
        self._specs = specs
        self._taken: set[Path] = set()
        self._file = self._target_file()
        # The sink that writes the file of -o; None where -o is no file.
        self._file_sink = None if self._file is None else sinks.find_by_suffix(self._file.suffix)

    def _target_file(self) -> Path | None:
        """-o as a file, or None where it is a folder or not given."""
        output = self._config.output
        if output == "-":
            raise UsageError(
                "--output -: results are not written to standard output; "
                "give a file (--json prints a summary)"
            )
        if (
            output is None
            or output.endswith(os.sep)
            or Path(output).is_dir()
            or not Path(output).suffix
        ):
            return None
        path = Path(output)
        if len(self._specs) > 1:
            raise UsageError(
                f"--output {output}: {len(self._specs)} sources need a folder: -o {path.stem}/"
            )
        if sinks.find_by_suffix(path.suffix) is None:
            ends = (Path(f"x{end}").suffix for sink in sinks.find_all() for end in sink.suffixes)
            known = ", ".join(dict.fromkeys(end for end in ends if end))
            raise UsageError(
                f"--output {output}: cannot write {path.suffix}; known: {known}, "
                "or a folder: -o DIR/"
            )
        return path

    def paths(self, spec: str, info: SourceInfo) -> dict[str, Path]:
        """Output name -> final path, in the order in which the sinks are to be opened."""
        chosen = self._choose_sinks(info)
        folder, stem = self._place(spec)
        for number in range(1, 10_000):
            numbered = stem if number == 1 else f"{stem}-{number}"
            paths = {
                sink.name: self._file
                if self._file is not None and sink is self._file_sink
                else folder / (numbered + sink.suffixes[0])
                for sink in chosen
            }
            if not self._taken.intersection(paths.values()):
                break
        self._taken.update(paths.values())
        for path in paths.values():
            self._refuse_sources(path)
        return paths

    def _choose_sinks(self, info: SourceInfo) -> list[type[Sink]]:
        """Those of --save, else the default of this kind of source, in the order of opening."""
        drawn = not self._config.no_video
        if self._config.save is None:
            chosen = self._default_sinks(info)
        else:
            chosen = [sink for sink in sinks.find_all() if sink.name in self._config.save]
        for sink in chosen:
            if info.kind not in sink.kinds:
                fitting = ",".join(one.name for one in _defaults_for(info.kind))
                raise UsageError(
                    f"--save {sink.name} needs a {' or '.join(sink.kinds)}, but {info.path} is "
                    f"{info.kind}; use --save {fitting}"
                )
        return [sink for sink in chosen if drawn or sink.pictures == "none"]

    def _default_sinks(self, info: SourceInfo) -> list[type[Sink]]:
        given = self._file_sink
        if given is not None and given.alone:
            return [given]
        if given is not None and info.kind not in given.kinds and not self._config.no_video:
            raise UsageError(
                f"--output {self._file}: {info.kind} make no {given.name}; "
                f"give a folder: -o {Path(str(self._file)).with_suffix('')}{os.sep}"
            )
        return _defaults_for(info.kind)

    def _place(self, spec: str) -> tuple[Path, str]:
        """Folder and stem of the names that are not given."""
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
