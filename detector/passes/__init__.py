"""The passes of ``detect-video profile``: one module of this folder each, one after the other, never one in another.

A module ``NAME.py`` holds:
    ORDER     when its turn is; ``loop`` is first, since others compare themselves with it
    run(occasion) -> facts (JSON values) for passes/NAME.json; raises NotHereError with the reason where it cannot run
and imports what it profiles with late. A pass that disturbs what it measures says ``slowdown``: its time a frame, or a
forward pass, over the plain one's; one that does not has UNDISTURBED, the reason why.
"""

from __future__ import annotations

import importlib
import pkgutil
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from detector.config import Config
from detector.errors import DetectVideoError, UsageError
from detector.passes.base import NotHereError, Occasion
from detector.run import detect
from detector.session.reading import SavedSession, read_session
from detector.session.store import Session

__all__ = ["chosen", "names", "profile", "run_passes"]


def names() -> list[str]:
    """All passes, in the order in which they run."""
    found = [info.name for info in pkgutil.iter_modules(__path__) if info.name != "base" and not info.ispkg]
    return sorted(found, key=lambda name: (_module(name).ORDER, name))


def chosen(only: Sequence[str] | None) -> list[str]:
    """The passes asked for, in order. Raises UsageError for a name that is none."""
    known = names()
    for name in only or ():
        if name not in known:
            raise UsageError(f"--only {name}: no such pass; passes are {', '.join(known)}")
    return [name for name in known if not only or name in only]


def profile(
    source: str,
    config: Config,
    *,
    only: Sequence[str] | None = None,
    prove: bool = False,
    command: Sequence[str] = (),
    say: Callable[[str], None] = lambda name: None,
) -> SavedSession:
    """The plain run, then every pass; all of it in one session. The outputs are the plain run's, in the session.

    Raises UsageError for an unknown pass, and what the plain run raises.
    """
    chosen(only)
    say("run")
    result = detect([source], _into_session(config), command=command)
    for error in result.errors:
        raise error
    assert result.session is not None
    plain = read_session(result.session)
    occasion = Occasion(source, config, Session(result.session), plain, prove)
    run_passes(occasion, only, say)
    return read_session(result.session)


def _into_session(config: Config) -> Config:
    """The annotated video lies in the session, unless the user gave it a place: the report shows its frames."""
    if config.output.output is not None or config.output.run_dir is None:
        return config
    return replace(config, output=replace(config.output, output=f"{config.output.run_dir}/"))


def run_passes(occasion: Occasion, only: Sequence[str] | None, say: Callable[[str], None]) -> None:
    """Runs them and writes what each found. One that cannot run, or fails, says why; the others go on."""
    for name in chosen(only):
        say(name)
        start = time.perf_counter()
        facts = _facts(name, occasion)
        if facts["available"] and "slowdown" not in facts:
            facts["undisturbed"] = _module(name).UNDISTURBED
        facts["seconds"] = round(time.perf_counter() - start, 3)
        occasion.found[name] = facts
        occasion.session.write_pass(name, facts)


def _facts(name: str, occasion: Occasion) -> dict[str, Any]:
    try:
        return {"available": True, "reason": None, **_module(name).run(occasion)}
    except NotHereError as reason:
        return {"available": False, "reason": str(reason)}
    except DetectVideoError as error:
        return {"available": False, "reason": f"failed: {' '.join(str(error).split())}"}
    except Exception as error:  # a bug of ours must not cost the other passes; its traceback stays in the session
        with occasion.session.path("error.log").open("a", encoding="utf-8") as log:
            log.write(f"pass {name}\n{traceback.format_exc()}\n")
        return {"available": False, "reason": f"internal error, see error.log: {type(error).__name__}: {error}"}


def _module(name: str) -> Any:
    return importlib.import_module(f"{__name__}.{name}")
