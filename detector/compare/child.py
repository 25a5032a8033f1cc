"""The parent's end of a worker: start, ask, stop. Death of a worker is an answer like any other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from detector.errors import EXIT_ENGINE

ROOT = Path(__file__).parents[2]
# -P: a folder called detector in the current directory must not be taken for this package.
COMMAND = [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
           "from detector.compare.worker import main; main()"]  # fmt: skip
GRACE_S = 3.0  # to leave in order before it is killed
LAST_WORDS = 300  # characters of stderr in a message


class Child:
    """A worker process. ``folder`` is its own; it must exist."""

    def __init__(self, folder: Path) -> None:
        self._stderr = folder / "stderr.txt"
        with self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                encoding="utf-8",
                start_new_session=True,  # a Ctrl-C in the terminal reaches the parent only, which then ends all
            )

    def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        """The worker's answer; ``error`` and ``exit_code`` in it where it refused, or died."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            return self._epitaph(command["do"])
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _epitaph(self, doing: str) -> dict[str, Any]:
        code = self._process.wait()
        how = f"by signal {-code} ({_signal_name(-code)})" if code < 0 else f"with status {code}"
        words = " ".join(self._stderr.read_text(encoding="utf-8", errors="replace").split())[-LAST_WORDS:]
        hint = "; killed for want of memory?" if code == -signal.SIGKILL else ""
        text = f"its process ended {how} during {doing}{hint}" + (f"; its last words: {words}" if words else "")
        return {"error": text, "exit_code": EXIT_ENGINE}

    def close(self) -> None:
        """Lets it go in order; may be called twice."""
        with suppress(OSError, ValueError):
            assert self._process.stdin is not None
            self._process.stdin.write('{"do": "close"}\n')
            self._process.stdin.close()
        self._end()

    def stop(self) -> None:
        """Ends it now, whatever it is doing."""
        self._signal(signal.SIGTERM)
        self._end()

    def _end(self) -> None:
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()
        finally:
            self._signal(signal.SIGKILL)  # what it may have started itself
            for pipe in (self._process.stdin, self._process.stdout):
                with suppress(OSError):
                    assert pipe is not None
                    pipe.close()

    def _signal(self, number: int) -> None:
        """To its whole process group, which outlives it as long as anything of it runs."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
