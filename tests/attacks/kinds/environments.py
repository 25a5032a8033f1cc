"""Unusual environments of new processes: locale, HOME, TMPDIR, limits, streams, permissions."""

from random import Random
from typing import Any

from tests.attacks.case import HANDLED, Case, Kind, Limits
from tests.attacks.inputs import NULL, content

VARIABLES: tuple[dict[str, str | None], ...] = (
    {"LANG": None, "LC_ALL": "C"},
    {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"LC_ALL": "tr_TR.UTF-8"},
    {"LC_ALL": "xx_XX.nothing", "LANGUAGE": "::"},
    {"PYTHONIOENCODING": "ascii:strict"},
    {"PYTHONIOENCODING": "utf-16"},
    {"HOME": None},
    {"HOME": "/nonexistent"},
    {"HOME": ""},
    {"HOME": "{root}/work/in.mp4"},
    {"TMPDIR": "/nonexistent"},
    {"TMPDIR": "{root}/work/in.mp4"},
    {"TMPDIR": ""},
    {"XDG_CACHE_HOME": "/dev/null"},
    {"XDG_CACHE_HOME": ""},
    {"PATH": None},
    {"PATH": ""},
    {"COLUMNS": "0"},
    {"COLUMNS": "-5", "LINES": "x"},
    {"COLUMNS": "1"},
    {"TERM": "dumb"},
    {"TERM": "nothing", "FORCE_COLOR": "1"},
    {"NO_COLOR": "1"},
    {"TZ": "Nowhere/Nothing"},
    {"PYTHONHASHSEED": "0", "PYTHONOPTIMIZE": "2"},
    {"PYTHONWARNINGS": "default"},
    {"PYTHONMALLOC": "debug"},
    {"OMP_NUM_THREADS": "0"},
    {"OMP_NUM_THREADS": "x"},
    {"OPENCV_LOG_LEVEL": "DEBUG"},
    {"TQDM_DISABLE": "1", "CI": "true"},
)
LOW_LIMITS: tuple[dict[str, int], ...] = (
    {"open_files": 12},
    {"open_files": 24},
    {"open_files": 64},
    {"file_bytes": 0},
    {"file_bytes": 1000},
    {"file_bytes": 20000},
    {"address_space_mb": 300},
    {"address_space_mb": 700},
    {"address_space_mb": 1000},
    {"address_space_mb": 1500},
    {"stack_kb": 256},
    {"stack_kb": 1024},
)
MODES: tuple[dict[str, int], ...] = (
    {"": 0o555},
    {"in.mp4": 0o000},
    {"dots.onnx": 0o000},
    {"runs": 0o555},
    {"out": 0o555},
    {"out": 0o000},
)
INFORMATIONAL: tuple[tuple[str, ...], ...] = (
    ("--help",),
    ("--version",),
    ("models", "list"),
    ("doctor", "--quick"),
)


def make(random: Random) -> Case:
    files: dict[str, Any] = {
        "in.mp4": content("in.mp4"),
        "dots.onnx": content("dots.onnx"),
        "out/": b"",
    }
    argv = ["in.mp4", *NULL, *random.choice(([], ["--json"], ["-o", "out/"], ["-q"], ["-v"]))]
    if random.random() < 0.15:
        argv = [*random.choice(INFORMATIONAL)]
    more: dict[str, Any] = {"codes": HANDLED}
    choice = random.randrange(10)
    if choice < 4:
        more["env"] = random.choice(VARIABLES)
        if random.random() < 0.3:
            more["env"] = {**more["env"], **random.choice(VARIABLES)}
    elif choice < 6:
        more["limits"] = Limits(**random.choice(LOW_LIMITS))
        # With limits this low, the interpreter or a library may fail before our code runs.
        more["codes"] = HANDLED | _library_codes(more["limits"])
    elif choice < 7:
        more["closed"] = random.choice(((0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)))
    elif choice < 8:
        # Click and Python choose the exit code if standard output cannot be written.
        more["stdout"] = random.choice(("full", "broken"))
        more["codes"] = HANDLED | ({1, 141} if more["stdout"] == "broken" else {120})
    else:
        files["runs/"] = b""
        more |= {"modes": random.choice(MODES), "plain_user": True}
    return Case(files, tuple(argv), fresh=True, **more)


def _library_codes(limits: Limits) -> set[int]:
    """Return the codes to allow if these limits keep Python, NumPy or OpenCV from loading.

    1: error before our code runs. 127: linker error. SIGSEGV, SIGABRT: no memory for a stack.
    """
    small = (limits.address_space_mb or 9999) <= 1000 or (limits.open_files or 99) <= 24
    return {1, 127, -6, -11} if small else set()


KIND = Kind("environments", make, share=1.2, first=30)
