"""Lay out a case, have a server run it, and check its exit codes, output and files.

ROOT/work     the current folder: the files of the case, and unrelated files of the user
ROOT/home     HOME, with files
ROOT/tmp      TMPDIR, empty
ROOT/seen     the output
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.attacks.case import Case, lay_out
from tests.attacks.two_servers import Received, two_servers
from tests.attacks.visitors import MARK, visitors_of
from tests.attacks.whole import why_incomplete

CHECKOUT = Path(__file__).parents[2]
CANARIES = {
    "work/letter.txt": b"Dear Ada,\n",
    "work/in-detected.txt": b"named almost like an output\n",
    "work/photos/holiday.jpg": b"\xff\xd8 not really\n",
    "home/.bashrc": b"export EDITOR=ed\n",
    "home/.config/app/settings.json": b"{}\n",
    "home/.cache/other/data.bin": bytes(range(256)),
}
# One thread for the engines' libraries, and a traceback for crashes.
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "COLUMNS": "100",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONFAULTHANDLER": "1",
    "PYTHONPATH": str(CHECKOUT),  # new processes run this checkout, too
    # With a limit on file sizes, Python 3.11 would leave a truncated .pyc in the checkout, because
    # it does not notice an incomplete write.
    "PYTHONDONTWRITEBYTECODE": "1",
}
# Markers and locks that detect-video leaves in sessions, in folders of outputs, and in engines/.
OUR_MARKERS = {".lock"} | {
    f".detect-video-{what}" for what in ("session", "pictures", "yolo", "crops")
}
LOG = "the traceback of a bug"
FAILURES = (
    "exit 1", "signals", "hangs", "canary", "left", "half files", "limits", "secrets", "other"
)  # fmt: skip


def run_apart(file: str, folder: Path, timeout_s: float) -> list[str]:
    """Run ``main`` of a test file in a new process, and return the lines that it prints."""
    words, env = [sys.executable, file, str(folder)], {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    process = subprocess.run(words, env=env, capture_output=True, text=True, timeout=timeout_s)
    assert process.returncode == 0, process.stderr[-2000:]
    return process.stdout.splitlines()


@dataclass
class Outcome:
    codes: list[int] = field(default_factory=list)
    wall_s: float = 0.0
    cpu_s: float = 0.0
    memory_mb: float = 0.0
    failures: list[tuple[str, str]] = field(default_factory=list)
    stdout: list[bytes] = field(default_factory=list)
    stderr: list[bytes] = field(default_factory=list)
    visits: int = 0  # connections to the page
    other_requests: int = 0  # requests that reached another host than the camera


class Server:
    """A server process with its own folder, as a context manager."""

    def __init__(self, root: Path) -> None:
        self.root = root / "case"
        environment = {**os.environ, **ENVIRONMENT}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.attacks.server"],
            cwd=CHECKOUT, env=environment, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError(f"the server did not start: exit {self._process.wait()}")

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def run(self, case: Case) -> Outcome:
        if case.visits:
            with visitors_of(case, self.root, self._process.pid) as (served, result):
                outcome = self._run(served)
            outcome.visits = result.visits
            outcome.failures += [*result.failures, *judge_output(outcome)]
            return outcome
        if not case.pages:
            return self._run(case)
        with two_servers(case.pages, case.wants_login) as received:
            files = dict(case.files)
            for name, content in case.files.items():
                if name.endswith(".yaml") and isinstance(content, bytes):
                    files[name] = received.fill(content.decode()).encode()
            outcome = self._run(replace(case, files=files))
        outcome.other_requests = len(received.other)
        outcome.failures += judge_received(received)
        return outcome

    def _run(self, case: Case) -> Outcome:
        self._clear()
        work, disk = self.root / "work", False
        self.root.mkdir(parents=True)
        work.mkdir()
        try:
            limits = case.limits
            if limits.disk_bytes is not None:
                disk = _mount(work, limits.disk_bytes)
                if not disk:
                    limits = replace(limits, file_bytes=limits.disk_bytes)
            self._prepare(case)
            before = snapshot(self.root)
            outcome = judge(case, self._ask(case, limits), before, self.root)
            if case.again is not None:
                self._run_again(case, outcome)
            return outcome
        finally:
            if disk:
                subprocess.run(["umount", str(work)], check=False)
            self._clear()

    def _prepare(self, case: Case) -> None:
        for name, content in CANARIES.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        lay_out(case, self.root / "work")
        for name in ("tmp", "seen"):
            (self.root / name).mkdir()
        for name, mode in case.modes.items():
            (self.root / "work" / name).chmod(mode)
        for name, owner in case.owners.items():
            os.chown(self.root / "work" / name, owner, owner)

    def _ask(self, case: Case, limits: Any, **changed: Any) -> dict[str, Any]:
        env: dict[str, str | None] = {
            "DETECT_VIDEO_SELF_TIMING": "0",
            **ENVIRONMENT,
            # Importing detector sets this, but forks get their environment after the import.
            "ORT_DISABLE_TELEMETRY": None if case.fresh else "1",
            "HOME": str(self.root / "home"),
            "TMPDIR": str(self.root / "tmp"),
            **{name: _in_root(value, self.root) for name, value in case.env.items()},
        }
        request = {
            "argv": case.argv,
            "folder": str(self.root / "work"),
            "seen": str(self.root / "seen"),
            "env": {name: value for name, value in env.items() if value is not None},
            "limits": asdict(limits),
            "fresh": case.fresh,
            "signals": case.signals,
            "stdout": case.stdout,
            "closed": case.closed,
            "copies": case.copies,
            "plain_user": case.plain_user,
            **changed,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the server died: exit {self._process.wait()}")
        reply: dict[str, Any] = json.loads(answer)
        return reply

    def _run_again(self, case: Case, outcome: Outcome) -> None:
        """Check that the same command, now undisturbed, ends with a code of ``case.again``."""
        assert case.again is not None
        free = replace(case.limits, file_bytes=None, disk_bytes=None, open_files=None)
        if case.limits.disk_bytes is not None:
            subprocess.run(
                ["mount", "-o", "remount,size=64m", str(self.root / "work")], check=False
            )
        ran = self._ask(case, free, signals=(), copies=1, stdout="file", fresh=False, closed=())
        [code] = [one["code"] for one in ran["copies"]]
        if code not in case.again:
            message = (self.root / "seen/stderr-0.txt").read_text(errors="replace").strip()
            outcome.failures.append(("other", f"the next run ended with {code}: {message[-300:]}"))

    def _clear(self) -> None:
        for path in self.root.rglob("*") if self.root.exists() else ():
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)
        shutil.rmtree(self.root, ignore_errors=True)


def _in_root(value: str | None, root: Path) -> str | None:
    return None if value is None else value.replace("{root}", str(root))


def _mount(folder: Path, size: int) -> bool:
    """Mount a file system of this size, rounded up to pages. Return False if not allowed."""
    size = -(-size // 4096) * 4096
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "attack", str(folder)],
        capture_output=True,
        check=False,
    ) if os.geteuid() == 0 else None  # fmt: skip
    return done is not None and done.returncode == 0


def snapshot(root: Path) -> dict[str, Any]:
    """Return path -> type, mode and content of everything below ROOT except ROOT/seen."""
    state: dict[str, Any] = {}
    for path in root.rglob("*"):
        name = str(path.relative_to(root))
        if name == "seen" or name.startswith("seen/"):
            continue
        info = path.lstat()
        if stat.S_ISLNK(info.st_mode):
            state[name] = ("link", os.readlink(path))
        elif stat.S_ISREG(info.st_mode):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            state[name] = ("file", info.st_mode, info.st_mtime_ns, digest)
        else:
            state[name] = ("folder" if stat.S_ISDIR(info.st_mode) else "other", info.st_mode)
    return state


def judge_output(outcome: Outcome) -> Iterator[tuple[str, str]]:
    """Check that the output shows neither what visitors sent nor an error of the page."""
    for text in (*outcome.stdout, *outcome.stderr):
        if MARK in text or b"error in the page" in text:
            yield "other", f"prints bytes of a visitor or an error of the page: {text[-300:]!r}"


def judge_received(received: Received) -> list[tuple[str, str]]:
    """Return at most one failure, however many requests took secrets to the other server."""
    if not (with_secrets := received.with_secrets()):
        return []
    first = with_secrets[0].strip()
    return [("secrets", f"in {len(with_secrets)} of {len(received.other)} requests: {first!r}")]


def judge(case: Case, ran: Mapping[str, Any], before: Mapping[str, Any], root: Path) -> Outcome:
    copies = ran["copies"]
    outcome = Outcome(
        [one["code"] for one in copies],
        max(one["wall_s"] for one in copies),
        sum(one["cpu_s"] for one in copies),
        max(one["memory_mb"] for one in copies),
    )
    for name, into in (("stdout", outcome.stdout), ("stderr", outcome.stderr)):
        into += [
            (root / "seen" / f"{name}-{number}.txt").read_bytes() for number in range(len(copies))
        ]
    outcome.failures += [
        *_judge_codes(case, outcome, ran["hang"]),
        *_judge_prints(case, outcome),
        *(("left", f"process still running: {line}") for line in ran["left"]),
        *_judge_files(case, outcome, before, root),
        *_judge_results(case, root),
    ]
    if outcome.memory_mb > case.limits.memory_mb:
        outcome.failures.append(("limits", f"{outcome.memory_mb:.0f} MB of memory"))
    if outcome.cpu_s > case.limits.cpu_s * case.copies:
        outcome.failures.append(("limits", f"{outcome.cpu_s:.0f} s of CPU"))
    return outcome


def _judge_files(
    case: Case, outcome: Outcome, before: Mapping[str, Any], root: Path
) -> Iterator[tuple[str, str]]:
    after = snapshot(root)
    allowed = {f"work/{name}" for name in case.may_change}
    for name, state in before.items():
        if name not in allowed and after.get(name) != state:
            yield "canary", f"{name}: {'changed' if name in after else 'gone'}"
    killed = -9 in outcome.codes
    aborted = any(code not in (0, 7) for code in outcome.codes)
    for name in sorted(after.keys() - before.keys()):
        reason = _why_left(name, after, killed, aborted)
        if reason == LOG and 1 in outcome.codes and 1 in case.codes:
            continue
        if reason is not None:
            yield "left", f"{name}: {reason}"
        elif reason := why_incomplete(root, name):
            yield "half files", f"{name}: {reason}"


def _judge_results(case: Case, root: Path) -> Iterator[tuple[str, str]]:
    for name, expected in case.digests.items():
        path = root / "work" / name
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
        if digest != expected:
            yield "other", f"{name}: {'is not there' if digest is None else 'has another content'}"


def _judge_codes(case: Case, outcome: Outcome, hang: bool) -> Iterator[tuple[str, str]]:
    if hang:
        yield "hangs", f"still running after {case.limits.wall_s:.0f} s"
        return
    for code in outcome.codes:
        if code in case.codes:
            continue
        if code == 1:
            yield "exit 1", "internal error"
        elif code < 0:
            yield "signals", f"ended by signal {-code}"
        else:
            yield "other", f"exit code {code}, allowed: {sorted(case.codes)}"
    if case.one_of is not None and case.one_of not in outcome.codes:
        yield "other", f"none of the copies ended with {case.one_of}: {outcome.codes}"


def _judge_prints(case: Case, outcome: Outcome) -> Iterator[tuple[str, str]]:
    for code, out, err in zip(outcome.codes, outcome.stdout, outcome.stderr, strict=True):
        if b"Traceback (most recent call last)" in err + out and code not in (1, -2):
            yield "other", "a traceback was printed"
        doctors = b"the default job cannot run (exit " in out
        message = doctors or b"detect-video: " in err
        if code in (2, 3, 4, 5, 6) and 2 not in case.closed and not message:
            yield "other", f"exit code {code} without a message"
        if case.says.encode() not in b" ".join((err + out).split()):  # lines may be wrapped
            yield "other", f"the output does not mention: {case.says}"
        texts = (text for text in (err, out) if _is_plain_text(case, text))
        if control := next(filter(None, map(_TERMINAL_CONTROLS.search, texts)), None):
            yield "other", f"terminal control characters were printed: {control[0]!r}"
        if "--json" in case.argv and out.strip() and code >= 0 and case.stdout == "file":
            try:
                json.loads(out)
            except ValueError:
                yield "other", "--json did not print a document"


# Escape, bell, backspace, C1 controls in UTF-8, and characters that change the text's direction.
_TERMINAL_CONTROLS = re.compile(
    rb"[\x00\x07\x08\x1b]|\xc2[\x80-\x9f]|\xe2\x80[\xaa-\xae]|\xe2\x81[\xa6-\xa9]"
)


def _is_plain_text(case: Case, text: bytes) -> bool:
    """Return False for a compressed trace, or if the case asks for colours or UTF-16."""
    expected = "FORCE_COLOR" in case.env or case.env.get("PYTHONIOENCODING") == "utf-16"
    return not expected and not text.startswith(b"\x1f\x8b")


def _why_left(name: str, after: Mapping[str, Any], killed: bool, aborted: bool) -> str | None:
    place, _, rest = name.partition("/")
    last = name.rsplit("/", 1)[-1]
    if last.startswith("detect-video-") and last.endswith(".log"):
        return LOG
    if place == "tmp" and not rest.startswith("detect-video-runs-"):  # sessions may stay in TMPDIR
        return None if killed else "a temporary file"
    if place == "home":
        return None if rest.startswith(".cache/detect-video") else "a new file in HOME"
    if last.startswith(".") and last not in OUR_MARKERS:
        return None if killed else "a hidden file"
    if ".partial" in last:
        return None if aborted else "a partial file"
    if last.startswith("source-") and last.endswith(".jsonl"):
        return None if aborted else "rows that were moved elsewhere"
    if last == "error.log":
        return LOG
    empty = after[name][0] == "folder" and not any(n.startswith(f"{name}/") for n in after)
    if empty and not killed and place in ("work", "tmp"):
        return "an empty folder"
    return None
