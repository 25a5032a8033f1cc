"""Decide names and folders of the results before anything is written. The sinks declare which
outputs exist (``sinks.base.Sink``)."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from detector.core import sinks, sources
from detector.core.config.schema import OutputConfig
from detector.core.errors import DetectVideoError, OutputError, SourceError, UsageError
from detector.core.errors.guard import refuse_kept
from detector.core.errors.writing import MARK, has_permission, is_null_device
from detector.core.sinks._partial import refuse_being_written
from detector.core.sinks.base import DRAWN, Sink
from detector.core.sources._forms import STANDARD_INPUT, NamedPictures, is_live, is_web
from detector.core.types import SourceInfo

SETTINGS = f"{MARK}.settings"  # name of an extended attribute of an output
LONGEST_STEM = 200  # a session's name contains at most this many bytes of the source's name
MAX_NAMES = 10_000  # most names to try: X, X-2, X-3...


def stem_of(spec: str) -> str:
    """Return the IN of IN-detected: a file's stem, a folder's name, or that of a glob's folder."""
    if spec == STANDARD_INPUT:
        return "stdin"
    if is_web(spec):
        return Path(_name_of_file(spec)).stem
    path = Path(spec)
    if not os.path.exists(path):
        from detector.core.sources._specs import is_numbered

        if any(sign in spec for sign in "*?[") or is_numbered(spec):
            path = path.parent
    if os.path.isdir(path):  # Path.is_dir raises an error if a name is too long
        return path.resolve().name or "root"
    return path.stem or "input"


def _name_of_file(spec: str) -> str:
    if not is_web(spec):
        return spec
    from detector.core.sources._web import WebPlace

    return WebPlace(spec).name


def session_name(spec: str, engine: str) -> str:
    """Return IN, or IN-ENGINE if the user named an engine; a long IN is cut to fit 255 bytes."""
    stem = stem_of(spec)
    while len(os.fsencode(stem)) > LONGEST_STEM:
        stem = stem[:-1]
    return f"{stem}{engine_suffix(engine)}"


def engine_suffix(engine: str) -> str:
    return "" if engine == "auto" else f"-{engine}"


def settings_of(options: Mapping[str, Mapping[str, Any]], spec: str, model_sha256: str) -> str:
    """Return a digest of source, model and the options that decide what the outputs contain."""
    deciding = {group: options[group] for group in ("network", "selection", "input", "drawing")}
    runtime = {name: options["runtime"][name] for name in ("size", "engine_options")}
    if options["runtime"]["rect"]:
        runtime["rect"] = True
    written = {
        name: options["output"][name]
        for name in ("quality", "preset", "crf", "only_detections", "lead")
    }
    for name in ("encoder", "save_conf", "save_times"):
        if options["output"][name]:
            written[name] = options["output"][name]
    if options.get("tracking", {}).get("track"):
        written["tracking"] = options["tracking"]
    source = spec if is_live(spec) else os.path.realpath(spec)
    precision = options["runtime"]["precision"]
    document = [source, model_sha256, precision, deciding, runtime, written]
    if isinstance(spec, NamedPictures):  # the text of this spec is only the pictures' folder
        document.append([os.path.realpath(path) for path in spec.paths])
    if spec == STANDARD_INPUT:  # another run may receive other data
        document.append(secrets.token_hex(8))
    if precision in ("auto", "int8"):
        document.append(options["calibration"])
    text = json.dumps(document, sort_keys=True, default=str)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:32]


def mark_settings(path: Path, settings: str) -> None:
    """Store ``settings`` in an extended attribute of an output, if the file system has them."""
    with suppress(OSError, AttributeError):
        os.setxattr(path, SETTINGS, settings.encode())


def may_replace(path: Path, settings: str, given: Path | None) -> bool:
    """Return whether ``path`` is free, was written with ``settings`` or with those of ``given``
    (the file of -o, which is replaced anyway), or is on a file system that cannot store any."""
    if not os.path.lexists(path):
        return True
    try:
        may = [settings.encode()]
        if given is not None and given.exists():
            may.append(os.getxattr(given, SETTINGS))
        return os.getxattr(path, SETTINGS) in may
    except OSError as error:
        return error.errno != errno.ENODATA
    except AttributeError:  # a system without extended attributes
        return True


def _choose_names(
    name: Callable[[str], dict[str, Path]],
    taken: Collection[Path],
    settings: str,
    given: Path | None,
) -> dict[str, Path]:
    """Return the first of ``name("")``, ``name("-2")``... with no path in ``taken``. With
    ``settings``, paths except ``given`` must also pass ``may_replace``. Raises OutputError."""
    for number in range(1, MAX_NAMES):
        paths = name("" if number == 1 else f"-{number}")
        own = [path for path in paths.values() if path != given]
        if not any(path in taken for path in paths.values()) and (
            not settings or all(may_replace(path, settings, given) for path in own)
        ):
            return paths
    first = next(iter(name("").values()))
    raise OutputError(f"{first.parent}: too many files are named {first.stem}; use -o")


class OutputPlan:
    """Assigns each output of each source its own path. Refuses an impossible -o."""

    def __init__(
        self,
        config: OutputConfig,
        specs: Sequence[str],
        *,
        engine: str = "auto",
        streams: bool = False,
        plain: bool = False,
        added_sinks: Sequence[str] = (),
    ) -> None:
        """``engine``: the user's, for names. ``streams``: ``-o -`` is possible. ``plain``: use
        names like video.mp4, for one folder per source. ``added_sinks``: sinks that stages add."""
        self._engine_suffix = engine_suffix(engine)
        self._output, self._save = config.output, config.save
        self._no_video, self._run_dir = config.no_video, config.run_dir
        # The sink that writes to standard output (``-o -``), if any.
        self.streamed: str | None = None
        if config.output == "-":
            rows = "csv" if "csv" in (config.save or ()) else "jsonl"
            self.streamed = "video" if config.save == ("video",) else rows
        self._plain, self._added_sinks = plain, added_sinks
        self._streams = streams
        self._specs = specs
        self._taken: set[Path] = set()
        # With -o /dev/null everything runs, but nothing is written, as in ffmpeg.
        self._discards = config.output is not None and is_null_device(config.output)
        self._file = self._target_file()
        # The sink that writes the file of -o; None if -o is not a file.
        self._file_sink = (
            None
            if self._file is None
            else sinks.find_by_suffix(self._file.suffix, config.save or ())
        )
        self._refuse_contradictions(config)
        self._check_options(asdict(config))
        self._refuse_many()
        self.check()

    def _target_file(self) -> Path | None:
        output = self._output
        if output == "-" and not self._streams:
            raise UsageError(
                "--output -: this command does not write rows to standard output; name a file"
            )
        if (
            output is None
            or output == "-"
            or self._discards
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
        plain_text = path.suffix.lower() == ".txt" and path.suffixes[-2:] != [".mot", ".txt"]
        if plain_text and "mot" not in (self._save or ()):
            raise UsageError(
                f"--output {output}: for YOLO labels, one .txt per frame, use --save yolo -o "
                f"{path.with_suffix('')}{os.sep}; for MOT rows in one file, --save mot -o {output}"
            )
        return path

    def _refuse_contradictions(self, given: OutputConfig) -> None:
        save = given.save
        if given.lead is not None and not given.only_detections:
            raise UsageError("--lead needs --only-detections; use both or neither")
        if given.save_conf:
            able = [sink.name for sink in sinks.find_all() if "save_conf" in sink.options]
            if not {*able} & {*(save or ())}:
                raise UsageError(
                    f"--save-conf needs --save {' or '.join(able)}; use both or neither: "
                    "other formats always contain scores"
                )
        if given.save_times:
            able = [sink.name for sink in sinks.find_all() if "save_times" in sink.options]
            requested = {*(save or ()), self._file_sink.name if self._file_sink else ""}
            if not {*able} & requested and (save is not None or self._file_sink is not None):
                raise UsageError(
                    f"--save-times needs --save {' or '.join(able)}; use both or neither"
                )
        if save is None:
            return
        if self.streamed == "video" and len(self._specs) > 1:
            raise UsageError(
                f"--output -: {len(self._specs)} videos cannot share one pipe; give one source, "
                "or a folder: -o DIR/"
            )
        if self.streamed is not None and {"jsonl", "csv"} <= set(save):
            raise UsageError(
                "--output -: rows go to standard output as either jsonl or csv; omit one in --save"
            )
        saved = sinks.in_order(save)
        unwanted = [sink.name for sink in saved if sink.pictures in DRAWN or sink.untouched]
        if given.no_video and unwanted:
            raise UsageError(
                f"--save {','.join(unwanted)} and --no-video contradict each other; omit one"
            )
        if self._file_sink is not None and self._file_sink.name not in save:
            both = ",".join([*save, self._file_sink.name])
            raise UsageError(
                f"--output {self._file} is a {self._file_sink.name} file, which --save "
                f"{','.join(save)} omits; use --save {both}, or a folder: -o DIR/"
            )

    def _check_options(self, given: Mapping[str, Any]) -> None:
        saved = self._save
        if saved is None and self._file is None and not self._no_video:
            saved = tuple(sink.name for sink in sinks.defaults("video"))
        if self._file is not None and self._file_sink is not None:
            self._file_sink.check_options(self._file.suffix, given)
        for sink in sinks.in_order(saved or ()):
            if sink is not self._file_sink:
                sink.check_options(sink.suffixes[0], given)

    def check_sources(self, blur: Sequence[str] | None) -> None:
        """Refuse outputs that no source can have. With ``blur``, refuse unblurred copies, too."""
        own = [sink for sink in map(sinks.find, self._save or ()) if sink.untouched]
        if blur and own:
            raise UsageError(
                f"--blur and --save {own[0].name} contradict each other: the latter shows the "
                "source's own pictures; use --save video"
            )
        unfit = [str(why) for spec in self._specs if (why := self._why_unfit(own, spec))]
        if unfit and len(unfit) == len(self._specs):
            raise UsageError("; ".join(unfit))

    def _why_unfit(self, own: Sequence[type[Sink]], spec: str) -> UsageError | None:
        """Return why outputs do not fit ``spec``, or None. ``own``: sinks that copy the source."""
        needs = f"--save {own[0].name}: needs a" if own else ""
        if needs and spec == STANDARD_INPUT:
            return UsageError(
                f"{needs} file, but standard input can be read only once; "
                "save it first: ffmpeg -i IN -c copy clip.mkv"
            )
        if is_live(spec):
            what = f"{needs} local file; download the address first (curl -O), or use --save video"
            return UsageError(what) if needs else None
        try:
            self._choose_sinks("video" if sources.pictures_of(spec) is None else "pictures", spec)
            for sink in own:
                sink.check_source(spec)
        except UsageError as error:
            return error
        except DetectVideoError:  # opening the source will report the error
            pass
        return None

    @property
    def beside_stream(self) -> bool:
        """True if files are written in addition to what ``-o -`` writes."""
        return self._save is not None and bool({*self._save} - {"jsonl", "csv", self.streamed})

    def may_write(self) -> bool:
        save, streamed = self._save, self.streamed
        rows_alone = streamed is not None and not {*(save or ())} - {streamed}
        if self._discards or rows_alone or save == ():
            return True
        return has_permission(self._nearest_folder())

    def check_permission(self) -> None:
        """Raise OutputError if permissions forbid writing. Call this before loading a model."""
        try:
            allowed = self.may_write()
        except FileNotFoundError:
            return
        if not allowed:
            given = self._output
            what = "here, in the current folder" if given in (None, "-") else str(given)
            raise OutputError(
                f"cannot write {what}: no permission to write in {self._nearest_folder()}; "
                "write elsewhere with -o DIR/"
            )

    def _nearest_folder(self) -> Path:
        """Return the folder of the outputs, or its nearest existing parent."""
        output = self._output
        place = Path() if output is None or self.streamed is not None else Path(output)
        if self._file is not None:
            place = Path(os.path.realpath(self._file)).parent
        place = place.absolute()
        while not place.exists() and place != place.parent:
            place = place.parent
        return place

    def _refuse_many(self) -> None:
        """Refuse to write a video, or several pictures, to a file of one picture (-o out.jpg)."""
        if self._file is None or self._file_sink is None:
            return
        if self._file.suffix.lower() not in self._file_sink.one_picture:
            return
        (spec,) = self._specs
        with suppress(SourceError):  # opening the source will report the error
            pictures = sources.pictures_of(spec)
            if pictures is not None and len(pictures) == 1:
                return
            what, write = "a video", f"{self._file.with_suffix('.mp4')}"
            if pictures is not None:
                what, write = f"{len(pictures)} pictures", f"{self._file.with_suffix('')}{os.sep}"
            raise UsageError(
                f"--output {self._file}: names one picture, but {spec} is {what}; use -o {write}"
            )

    def check(self) -> None:
        """Refuse an impossible -o. Call this again once the session's folder exists."""
        if self._output in (None, "-") or self._discards:
            return
        assert self._output is not None
        output = Path(self._output)
        if self._file is None:
            if os.path.lexists(output) and not output.is_dir():
                raise OutputError(
                    f"{output}: not a folder, and no suffix says what to write; give a "
                    "folder or FILE.mp4 with -o"
                )
            return
        refuse_kept(output)
        real = Path(os.path.realpath(output))
        run_dir = self._run_dir  # this folder and its missing parents are created later
        if not real.parent.is_dir() and (
            run_dir is None or real.parent not in Path(os.path.realpath(run_dir), "x").parents
        ):
            raise OutputError(
                f"cannot write {output}: the folder {real.parent} does not exist; create it, or "
                "write elsewhere with -o"
            )
        if os.path.lexists(real) and not real.is_file():
            raise OutputError(
                f"cannot write {output}: it exists and is not a regular file; give a file's name "
                "with -o"
            )

    def paths(self, spec: str, info: SourceInfo, settings: str = "") -> dict[str, Path]:
        """Return output name -> final path, in the order in which sinks are opened.

        A default name is used if it is free, or if a run with the same ``settings`` wrote the file.
        With empty ``settings``, any existing file is replaced. Raises UsageError for a file that
        the command reads, or a file of its session.
        """
        if self._discards:
            self._choose_sinks(info.kind, info.path)
            return {}
        paths = self._name_paths(spec, info.kind, info.path, settings)
        place, _ = self._place(spec)
        folders = {path.parent for path in paths.values()}
        # The folder of -o FILE exists, as ``check`` made sure.
        self._make_folders(folders | {self._folder()} if self._file is None else folders - {place})
        self._taken.update(paths.values())
        for path in paths.values():
            refuse_kept(path)
        return paths

    def refuse_being_written(self, settings: str) -> None:
        """Raise OutputError if another run is writing the outputs of the only source."""
        if len(self._specs) != 1 or self._discards:
            return
        (spec,) = self._specs
        with suppress(SourceError, UsageError):
            kind = "video" if sources.pictures_of(spec) is None else "pictures"
            for path in self._name_paths(spec, kind, spec, settings).values():
                refuse_being_written(path)

    def _name_paths(
        self, spec: str, kind: str, path_of_source: str, settings: str
    ) -> dict[str, Path]:
        """Return the same as ``paths``, without making folders or marking names as taken."""
        chosen = self._choose_sinks(kind, path_of_source)
        folder, stem = self._place(spec)
        given = None if self._file is None else self._file_sink
        parts = [sink for sink in chosen if sink.dataset and sink is not given]

        def name_one(sink: type[Sink], added: str) -> Path:
            if self._file is not None and sink is given:
                return self._file
            if len(parts) > 1 and sink in parts:  # several parts of a dataset share one folder
                name = "dataset" if self._plain else f"{stem}-dataset{added}"
                return folder / name / sink.dataset
            return folder / self._default_name(spec, stem, sink, added)

        def named(added: str) -> dict[str, Path]:
            return {sink.name: name_one(sink, added) for sink in chosen}

        return _choose_names(named, self._taken, settings, self._file)

    def pixels(self, spec: str) -> str:
        """Return the pixel format to read: "bgr" if an output needs it, else "yuv420p"."""
        needs = any(sink.pictures == "bgr" for sink in self._list_sinks("video", spec))
        return "bgr" if needs else "yuv420p"

    def shows(self, spec: str) -> bool:
        chosen = [*self._list_sinks("pictures", spec), *self._list_sinks("video", spec)]
        return self.streamed == "video" or any(sink.pictures != "none" for sink in chosen)

    def imports(self, kind: str, spec: str) -> list[str]:
        """Return the modules that outputs of a source of this ``kind`` (pictures, video) import."""
        if self.streamed == "video":
            return [*sinks.find("video").imports, "detector.core.sinks.video.piped"]
        return [module for sink in self._list_sinks(kind, spec) for module in sink.imports]

    def _list_sinks(self, kind: str, path: str) -> list[type[Sink]]:
        with suppress(UsageError):  # ``paths`` will report the error
            return self._choose_sinks(kind, path)
        return []

    def _choose_sinks(self, kind: str, path: str) -> list[type[Sink]]:
        """Return the sinks of --save, or the defaults of this kind, in the order of opening."""
        drawn = not self._no_video
        if self._save is None:
            names = {sink.name for sink in self._default_sinks(kind)}
        else:
            names = set(self._save) - {self.streamed}
        extra = set() if self.streamed else set(self._added_sinks)
        chosen = sinks.in_order(names | extra)
        streamed = () if self.streamed is None else (sinks.find(self.streamed),)
        for sink in (*chosen, *streamed):
            if kind not in sink.kinds:
                others = [other.name for other in chosen if kind in other.kinds]
                instead = [other.name for other in sinks.defaults(kind) if other.pictures in DRAWN]
                raise UsageError(
                    f"--save {sink.name} needs a {' or '.join(sink.kinds)}, but {path} is "
                    f"{kind}; use --save {','.join(dict.fromkeys([*instead, *others]))}"
                )
        return [sink for sink in chosen if drawn or sink.pictures not in DRAWN]

    def _default_sinks(self, kind: str) -> list[type[Sink]]:
        given = self._file_sink
        if self.streamed is not None:
            return []
        if given is not None and given.alone:
            return [given]
        if given is not None and kind not in given.kinds and not self._no_video:
            raise UsageError(
                f"--output {self._file}: cannot write {kind} as {given.name}; "
                f"give a folder: -o {Path(str(self._file)).with_suffix('')}{os.sep}"
            )
        return sinks.defaults(kind)

    def _folder(self) -> Path:
        output = self._output
        return Path() if output is None or output == "-" else Path(output)

    def _make_folders(self, folders: Collection[Path]) -> None:
        for folder in folders:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise OutputError(
                    f"{folder}: cannot create the output folder: {error.strerror}; choose another "
                    "with -o"
                ) from error

    def _place(self, spec: str) -> tuple[Path, str]:
        if self._file is not None:
            return self._file.parent, self._file.stem
        return self._folder(), f"{stem_of(spec)}{self._engine_suffix}"

    def _default_name(self, spec: str, stem: str, sink: type[Sink], added: str) -> str:
        """Return a name such as IN-detected.mp4, or IN-detected-2.mp4 if ``added`` is "-2"."""
        if self._plain:
            return _name_plainly(sink, _choose_suffix(sink, spec))
        ending = sink.ending if self._file is None else ""
        return f"{stem}{ending}{added}{_choose_suffix(sink, spec)}"


def _name_plainly(sink: type[Sink], suffix: str) -> str:
    """Return a plain name: detections.jsonl, video.mp4, overlay.mkv, or labels for a folder."""
    if not suffix.startswith("."):
        return suffix.removeprefix("-") or sink.name
    of_rows = sink.pictures == "none" and not sink.untouched
    return f"{'detections' if of_rows else sink.name}{suffix}"


def _choose_suffix(sink: type[Sink], spec: str) -> str:
    """Return the suffix of a default name. A single picture keeps the suffix of its format."""
    if not sink.one_picture or not (os.path.isfile(spec) or is_web(spec)):
        return sink.suffixes[0]
    if sources.pictures_of(spec) is None:
        return sink.suffixes[0]
    from detector.core.sinks._naming import choose_copy_suffix

    return choose_copy_suffix(_name_of_file(spec), sink.one_picture).lower()
