"""Print the doctor's findings: the verdict, the engines, the machine, then the warnings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from detector.core.errors.text import counted
from detector.core.terminal.console import SafeConsole

NARROW = 60  # with fewer columns, the table would have one word per line


def print_findings(console: SafeConsole, findings: dict[str, Any]) -> None:
    machine = _in_lines(findings) if console.width < NARROW else [_machine_table(findings)]
    parts: list[RenderableType] = [*_engine_lines(findings), Text(""), *machine]
    parts += [Text(f"warning: {warning}", style="bold") for warning in findings["warnings"]]
    default, code = findings["default"], findings["exit"]["code"]
    for choice in findings["in_force"]:
        height, width = choice["model_input"]
        parts.append(
            Text(
                f'"auto" for {choice["model"]} {width}x{height}: '
                f"{choice['reason']}; {choice['undo']}"
            )
        )
    # For the models listed above, auto uses what was measured instead of this default.
    scope = '"auto" for other models: ' if findings["in_force"] and default["why"] else ""
    parts.append(Text(scope + (default["why"] or "no engine")))
    verdict = (
        "the default job can run" if code == 0 else f"the default job cannot run (exit {code})"
    )
    parts[:0] = [Text(f"{verdict}: {findings['exit']['reason']}", style="bold"), Text("")]
    console.print(Group(*parts))


def _in_lines(findings: dict[str, Any]) -> Iterator[RenderableType]:
    """Yield the facts of the machine for a narrow terminal, each as a heading and its text."""
    for heading, text in _machine_rows(findings):
        if heading:
            yield Text(heading, style="bold")
        yield Padding(Text(text, overflow="fold"), (0, 0, 0, 2))


def _engine_lines(findings: dict[str, Any]) -> Iterator[RenderableType]:
    """Yield a line for each engine, then lines that say why it cannot run or list its devices."""
    rows = [("engine", "usable", "precisions", list[str]()), *_engine_rows(findings)]
    first, second = (max(len(row[at]) for row in rows) for at in (0, 1))
    for name, usable, precisions, reasons in rows:
        line = f"{name:<{first}}  {usable:<{second}}  {precisions}".rstrip()
        yield Text(line, style="bold" if name == "engine" else "")
        for reason in reasons:
            yield Padding(Text(reason.removeprefix(f"engine {name}: ")), (0, 0, 0, 2))


def _engine_rows(findings: dict[str, Any]) -> Iterator[tuple[str, str, str, list[str]]]:
    """Yield each engine's name, whether it is usable, its precisions, and the lines below it."""
    for engine in findings["engines"]:
        usable = "no" if not engine["usable"] else "yes" if engine["tried"] else "yes (not tried)"
        precisions = [name for name, reason in engine["precisions"].items() if reason is None]
        refused = [reason for reason in engine["precisions"].values() if reason is not None]
        reasons = [engine["reason"]] if engine["reason"] else refused
        if builds := engine["builds"]:
            build = builds["reason"] or "its plans can be built here"
            reasons = [f"build: {build}", *(f"run: {reason}" for reason in reasons)]
        reasons += [
            " ".join([f"{offer['option']}:", offer["name"], *offer["precisions"]])
            for offer in engine["offers"]
        ]
        yield engine["name"], usable, " ".join(precisions), reasons


def _machine_table(findings: dict[str, Any]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column("what", style="bold", no_wrap=True)
    table.add_column("found", overflow="fold")
    for what, found in _machine_rows(findings):
        table.add_row(what, Text(found))
    return table


def _machine_rows(findings: dict[str, Any]) -> list[tuple[str, str]]:
    cpu, media, nvtx = findings["cpu"], findings["media"], findings["nvtx"]
    quota = f", quota {cpu['quota_cores']:g}" if cpu["quota_cores"] else ""
    memory = cpu["memory_bytes"]
    versions = findings["environment"]["detect_video"], findings["environment"]["commit"]
    lines = [
        ("detect-video", ", commit ".join(filter(None, versions))),
        (
            "CPU",
            f"{cpu['model']}, {cpu['usable_cores']} of {counted(cpu['cores'], 'core')} "
            f"usable{quota}",
        ),
        ("memory", " of ".join(_size(memory[name]) for name in ("available", "total")) + " free"),
        *(
            ("" if at else "features", f"{name} ({what})")
            for at, (name, what) in enumerate(cpu["meaning"].items() or [("none", "that we use")])
        ),
        *(
            (f"--precision {name}", text)
            for name, text in cpu["precision"].items()
            if name != "fp32"
        ),
        (
            "thread settings",
            " ".join(f"{name}={value}" for name, value in findings["threads"]["settings"].items())
            or "none in the environment (such as OMP_NUM_THREADS)",
        ),
        ("GPU", _describe_gpus(findings["gpu"])),
        ("decoders", _describe_decoders(media)),
        ("encoders", ", ".join(_mark_missing(media["av"]["encoders"])) or "none"),
        *((f"--encoder {name}", text) for name, text in _encoder_rows(findings["encoders"])),
        ("NVTX", nvtx["reason"] + (f" ({nvtx['tool']})" if nvtx["tool"] else "")),
        ("counters", _describe_counters(findings)),
    ]
    for name, folder in findings["folders"].items():
        state = "writable" if folder["writable"] else "NOT writable"
        lines.append(
            (f"{name} folder", f"{folder['path']}: {state}, {_size(folder['free_bytes'])} free")
        )
    return lines


def _encoder_rows(encoders: dict[str, Any]) -> list[tuple[str, str]]:
    lines = []
    for name, encoder in encoders.items():
        text = encoder["reason"] or "runs here"
        if encoder["fps"] is not None:
            text += f": {encoder['fps']:.0f} FPS at 1280x720"
        lines.append((name, text))
    return lines


def _describe_gpus(findings: dict[str, Any]) -> str:
    if not findings["gpus"]:
        return str(findings["reason"])
    return "; ".join(
        f"{gpu['index']}: {gpu['name']}, compute capability {gpu['compute_cap']}, driver "
        f"{gpu['driver_version']}, "
        f"{gpu['memory.free']} of {gpu['memory.total']} free"
        for gpu in findings["gpus"]
    )


def _describe_decoders(media: dict[str, Any]) -> str:
    cv2, av = media["cv2"], media["av"]
    first = f"cv2 {cv2['version']} ({', '.join(cv2['backends'])})" if cv2["version"] else "no cv2"
    return f"{first}; " + (
        f"PyAV {av['version']}: {', '.join(_mark_missing(av['decoders']))}"
        if av["version"]
        else "no PyAV"
    )


def _describe_counters(findings: dict[str, Any]) -> str:
    rapl, schedstat = findings["counters"]["rapl"], findings["counters"]["schedstat"]
    zones = ", ".join(zone for zone, readable in rapl.items() if readable)
    cpu = f"RAPL: {zones or 'present, but not readable by this user'}"
    if not rapl:
        cpu = "RAPL: not on this machine"
    energy = findings["gpu"]["energy_readable"]
    nvml = (
        "no NVML" if energy is None else f"NVML energy {'readable' if energy else 'not readable'}"
    )
    return f"{cpu}; {nvml}; schedstat {'readable' if schedstat else 'not readable'}"


def _mark_missing(items: dict[str, bool]) -> list[str]:
    return [name if present else f"no {name}" for name, present in items.items()]


def _size(number: int | None) -> str:
    return "?" if number is None else f"{number / 1e9:.1f} GB"
