"""The passes of ``detect-video profile``: one module of this folder each, one after the other, never one in another.

A module ``NAME.py`` holds:
    ORDER     when its turn is; ``loop`` is first, since others compare themselves with it
    WHAT      what it does, in a few words, for whoever waits for it
    run(occasion) -> facts (JSON values) for passes/NAME.json; raises NotHereError with the reason where it cannot run
    ON_REQUEST  the option that asks for it, where it would keep users waiting who did not
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

from detector.config.schema import Config
from detector.errors import DetectVideoError, UsageError
from detector.jobs.profile.base import NotHereError, Occasion
from detector.run.detect import detect
from detector.session.read import SavedSession, read_session
from detector.session.store import Session

Say = Callable[[str, bool], None]
"""Told of the progress: a text, and whether its line ends with it."""

__all__ = ["chosen", "names", "profile", "run_passes"]


def names() -> list[str]:
    """All passes, in the order in which they run."""
    found = [
        info.name
        for info in pkgutil.iter_modules(__path__)
        if info.name != "base" and not info.ispkg
    ]
    return sorted(found, key=lambda name: (_module(name).ORDER, name))


def chosen(only: Sequence[str] | None, more: Sequence[str] = ()) -> list[str]:
    """The passes asked for, in order: ``only`` those, or all but those that run on request, and ``more``.

    Raises UsageError for a name that is none.
    """
    known = names()
    for name in only or ():
        if name not in known:
            raise UsageError(f"--only {name}: no such pass; passes are {', '.join(known)}")
    wanted = only or [name for name in known if not hasattr(_module(name), "ON_REQUEST")]
    return [name for name in known if name in wanted or name in more]


def profile(
    source: str,
    config: Config,
    *,
    only: Sequence[str] | None = None,
    more: Sequence[str] = (),
    prove: bool = False,
    command: Sequence[str] = (),
    say: Say = lambda text, whole: None,
) -> SavedSession:
    """The plain run, then every pass; all of it in one session. The outputs are the plain run's, in the session.

    Raises UsageError for an unknown pass, and what the plain run raises.
    """
    wanted = chosen(only, more)
    say("the plain run ... ", False)
    result = detect([source], _into_session(config), command=command)
    for error in result.errors:
        say("failed", True)
        raise error
    assert result.session is not None
    plain = read_session(result.session)
    say(f"{plain.document['seconds']['run']:.1f} s", True)
    run_passes(Occasion(source, config, Session(result.session), plain, prove), wanted, say)
    return read_session(result.session)


def _into_session(config: Config) -> Config:
    """The annotated video lies in the session, unless the user gave it a place: the report shows its frames."""
    if config.output.output is not None or config.output.run_dir is None:
        return config
    return replace(config, output=replace(config.output, output=f"{config.output.run_dir}/"))


def run_passes(occasion: Occasion, wanted: Sequence[str], say: Say) -> None:
    """Runs them and writes what each found. One that cannot run, or fails, says why; the others go on."""
    for number, name in enumerate(wanted, 1):
        say(f"pass {number} of {len(wanted)}, {name}: {_module(name).WHAT} ... ", False)
        start = time.perf_counter()
        facts = _facts(name, occasion)
        if facts["available"] and "slowdown" not in facts:
            facts["undisturbed"] = _module(name).UNDISTURBED
        facts["seconds"] = round(time.perf_counter() - start, 3)
        occasion.found[name] = facts
        occasion.session.write_pass(name, facts)
        say(
            f"{facts['seconds']:.1f} s"
            if facts["available"]
            else f"not available: {facts['reason']}",
            True,
        )


def _facts(name: str, occasion: Occasion) -> dict[str, Any]:
    try:
        return {"available": True, "reason": None, **_module(name).run(occasion)}
    except NotHereError as reason:
        return {"available": False, "reason": str(reason)}
    except DetectVideoError as error:
        return {"available": False, "reason": f"failed: {' '.join(str(error).split())}"}
    except (
        Exception
    ) as error:  # a bug of ours must not cost the other passes; its traceback stays in the session
        with occasion.session.path("error.log").open("a", encoding="utf-8") as log:
            log.write(f"pass {name}\n{traceback.format_exc()}\n")
        return {
            "available": False,
            "reason": f"internal error, see error.log: {type(error).__name__}: {error}",
        }


def _module(name: str) -> Any:
    return importlib.import_module(f"{__name__}.{name}")
