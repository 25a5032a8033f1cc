"""Find out what runs on this machine, or why not: engines, hardware, codecs, counters."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from detector.core import engines
from detector.core.config.schema import Config
from detector.core.engines import _ranking
from detector.core.engines._built import store
from detector.core.errors import EXIT_DONE, EXIT_ENGINE, EXIT_OUTPUT, EngineError
from detector.core.jobs.doctor.attempt import BUILD, DEFAULT_JOB, TIME_ENCODERS, try_in_child
from detector.core.jobs.doctor.encoding import encoders, unusable
from detector.core.jobs.doctor.hardware import cpu, nvidia, nvtx_tool, readable_counters, threads
from detector.core.run.environment import environment, version_of
from detector.core.run.in_force import list_in_force
from detector.core.run.measurements import why_not_read

# Encoder -> purpose. The default job needs both encoders.
ENCODERS = {"libx264": "the annotated video", "aac": "its sound, if it cannot be copied"}
DECODERS = ("h264", "hevc", "vp9", "av1", "mpeg4", "mjpeg")
CV2_PACKAGES = (
    "opencv-python",
    "opencv-python-headless",
    "opencv-contrib-python",
    "opencv-contrib-python-headless",
)


def codecs() -> dict[str, Any]:
    """Return what cv2 and PyAV support, and warnings, such as that two packages contain cv2."""
    installed = [name for name in CV2_PACKAGES if version_of(name)]
    report: dict[str, Any] = {
        "cv2": _describe_cv2(),
        "av": _describe_av(),
        "cv2_packages": installed,
        "warnings": [],
    }
    if len(installed) > 1:
        report["warnings"].append(
            f"{' and '.join(installed)} are installed and overwrite each other's files; run: "
            f"pip uninstall -y {' '.join(installed)} && pip install opencv-python-headless"
        )
    for library in ("cv2", "av"):
        if report[library]["error"]:
            report["warnings"].append(report[library]["error"])
    missing = [name for name, available in report["av"]["encoders"].items() if not available]
    if missing:
        report["warnings"].append(
            f"PyAV has no encoder {' and '.join(missing)}: pip install --force-reinstall av"
        )
    return report


def _describe_cv2() -> dict[str, Any]:
    try:
        import cv2

        backends = [
            cv2.videoio_registry.getBackendName(backend)
            for backend in cv2.videoio_registry.getStreamBackends()
        ]
        return {
            "version": cv2.__version__,
            "backends": backends,
            "threads": cv2.getNumThreads(),
            "error": None,
        }
    except Exception as error:  # without libGL an ImportError; a broken wheel may raise any error
        text = " ".join(str(error).split())
        return {
            "version": None,
            "backends": [],
            "error": f"cv2 cannot be imported: {text}; pip install opencv-python-headless",
        }


def _describe_av() -> dict[str, Any]:
    try:
        import av
    except Exception as error:
        text = " ".join(str(error).split())
        return {
            "version": None,
            "encoders": {},
            "decoders": {},
            "error": f"PyAV cannot be imported: {text}; pip install av",
        }
    return {
        "version": av.__version__,
        "ffmpeg": {
            name: ".".join(map(str, number)) for name, number in av.library_versions.items()
        },
        "encoders": {name: _has_codec(name, "w") for name in ENCODERS},
        "decoders": {name: _has_codec(name, "r") for name in DECODERS},
        "error": None,
    }


def _has_codec(name: str, mode: str) -> bool:
    import av

    try:
        av.Codec(name, mode)
    except ValueError:  # UnknownCodecError
        return False
    return True


SCHEMA = 1
LOW_SPACE_BYTES = 500 << 20  # enough for a TensorRT plan and its timing cache


def examine(config: Config, quick: bool = False) -> dict[str, Any]:
    """Return all findings as JSON values. ``quick``: run nothing, trust that engines work."""
    engine_facts = [_examine_engine(name, quick) for name in engines.names()]
    given = config.runtime.engines_dir
    folders = {
        "engines": _describe_folder(store.choose_folder(given), replaceable=given is None),
        "current": _describe_folder(Path(), replaceable=False),
    }
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "environment": environment(),
        "engines": engine_facts,
        "cpu": cpu(),
        "threads": threads(),
        "gpu": nvidia(),
        "media": codecs(),
        "encoders": encoders(quick=True) if quick else _time_encoders(),
        "nvtx": nvtx_tool(),
        "counters": readable_counters(),
        "folders": folders,
        "in_force": list_in_force(config),
    }
    document["default"] = _check_default_job(engine_facts, folders, quick)
    warnings = [store.why_elsewhere(given), *why_not_read(config)]
    warnings.append(_ranking.suggest_library(config.runtime.device))
    document["warnings"] = [*_warnings(document), *filter(None, warnings)]
    default = document["default"]
    document["exit"] = {"code": default["exit_code"], "reason": default["reason"]}
    return document


def _examine_engine(name: str, quick: bool) -> dict[str, Any]:
    """Return facts about an engine. ``reason``: why it is not usable. ``precisions``: precision ->
    why it cannot run, or None. ``builds``: whether this machine can build the engine's files."""
    facts = {
        "name": name,
        "usable": False,
        "install": engines.find(name).install,
        "precisions": {},
        "offers": [],
        "tried": False,
        "builds": _examine_build(name, quick) if engines.find(name).builds_anywhere else None,
    }
    reason = engines.why_absent(name)
    if reason is not None or quick:
        return {**facts, "usable": reason is None, "reason": reason}
    result = try_in_child(name)
    return {
        **facts,
        "usable": result["error"] is None,
        "reason": result["error"],
        "tried": True,
        "precisions": result.get("precisions", {}),
        "offers": result.get("offers", []),
        "seconds": result.get("seconds"),
    }


def _examine_build(name: str, quick: bool) -> dict[str, Any]:
    reason = engines.why_not_buildable(name)
    if reason is None and not quick:
        reason = try_in_child(f"{BUILD}{name}")["error"]
    return {"usable": reason is None, "reason": reason}


def _time_encoders() -> dict[str, Any]:
    result = try_in_child(TIME_ENCODERS)
    error: str | None = result["error"]
    return unusable(error) if error is not None else result["encoders"]


def _check_default_job(
    engine_facts: list[dict[str, Any]], folders: dict[str, Any], quick: bool
) -> dict[str, Any]:
    """Run ``detect-video in.mp4`` with a test clip. If ``quick``, judge by the findings instead."""
    try:
        engine, why = _ranking.choose_by_rank()
    except EngineError as error:
        return {"engine": None, "why": None, "exit_code": error.exit_code, "reason": str(error)}
    facts: dict[str, Any] = {"engine": engine, "why": why}
    if not quick:
        result = try_in_child(DEFAULT_JOB)
        reason = result["error"] or "a test clip ran through to an annotated video"
        return {**facts, "exit_code": result.get("exit_code", EXIT_DONE), "reason": reason}
    broken = next(
        (
            facts["reason"]
            for facts in engine_facts
            if facts["name"] == engine and not facts["usable"]
        ),
        None,
    )
    if broken is not None:
        return {**facts, "exit_code": EXIT_ENGINE, "reason": broken}
    for name, folder in folders.items():
        if not folder["writable"] and not folder["replaceable"]:
            reason = f"cannot write to the {name} folder {folder['path']}"
            return {**facts, "exit_code": EXIT_OUTPUT, "reason": reason}
    return {**facts, "exit_code": EXIT_DONE, "reason": "found no problem (not tried)"}


def _describe_folder(path: Path, replaceable: bool) -> dict[str, Any]:
    """Describe a folder. If it is missing, examine its nearest existing parent. ``replaceable``:
    whether a temporary folder would do."""
    place = path.resolve()
    while not place.exists():
        place = place.parent
    return {
        "path": str(path.resolve()),
        "writable": store.is_writable(place),
        "replaceable": replaceable,
        "free_bytes": shutil.disk_usage(place).free,
    }


def _warnings(document: dict[str, Any]) -> list[str]:
    """Return warnings about what works, but slowly or not as expected."""
    warnings = [
        *document["media"]["warnings"],
        *document["threads"]["warnings"],
        *document["cpu"]["warnings"],
    ]
    for name, folder in document["folders"].items():
        if not folder["writable"]:
            cure = "--engines-dir DIR" if name == "engines" else "-o DIR/ and --run-dir DIR"
            means = "every run rebuilds in a temporary one; " if folder["replaceable"] else ""
            warnings.append(
                f"cannot write to the {name} folder {folder['path']}; {means}use {cure}"
            )
        elif folder["free_bytes"] < LOW_SPACE_BYTES:
            warnings.append(
                f"the {name} folder {folder['path']} has {folder['free_bytes'] / 1e6:.0f} MB free"
            )
    nvtx = document["nvtx"]
    if nvtx["tool"] and not nvtx["attached"]:
        warnings.append(
            f"NVTX_INJECTION64_PATH={nvtx['tool']}: {nvtx['reason']}; the tool gets no ranges"
        )
    return warnings
