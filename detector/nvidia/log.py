"""TensorRT says in its log why a call failed, and returns None or False. So the log is kept, and nothing is printed."""

from __future__ import annotations

from collections import deque
from typing import Any

KEPT = 40  # messages


def kept_log(trt: Any) -> Any:
    """An ``ILogger`` that keeps the last errors and warnings. ``errors()`` hands out the errors and forgets them."""

    class KeptLog(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self._errors: deque[str] = deque(maxlen=KEPT)

        def log(self, severity: Any, msg: str) -> None:
            if int(severity) <= int(trt.ILogger.Severity.ERROR):
                self._errors.append(" ".join(str(msg).split()))

        def errors(self) -> list[str]:
            found = list(self._errors)
            self._errors.clear()
            return found

        def reason(self) -> str:
            """The errors since the last call, first one first: the first is mostly the cause."""
            return "; ".join(dict.fromkeys(self.errors())) or "TensorRT gave no reason"

    return KeptLog()
