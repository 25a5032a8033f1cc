"""Programs of scripts/ and training/ import this first: it restarts them in the checkout's .venv.

A program that already runs there, or in a Python with detect-video installed, does not restart. If
a package is missing, the program ends with status 2 and one line that says what to type. ``ROOT``
is the checkout, which this module adds to ``sys.path``.
"""

from __future__ import annotations  # Debian 11's Python 3.9, without orig_argv, runs this too

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
OURS = ("detector", "tests", "measuring", "following", "gpu", "model", "street")
# Modules whose package has another name on the index.
PACKAGES = {"cv2": "opencv-python-headless", "PIL": "pillow", "yaml": "pyyaml"}


def _is_program() -> bool:
    """Return whether the process runs a program of scripts/ or training/, not a test of one."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    return bool(file) and Path(file).resolve().parent in (ROOT / "scripts", ROOT / "training")


def _run_under_venv() -> None:
    python = VENV / "bin/python"
    in_venv = Path(sys.executable).parent.resolve() == python.parent.resolve()
    if not in_venv and find_spec("detector") is None and os.access(python, os.X_OK):
        os.execv(python, [str(python), *getattr(sys, "orig_argv", ["", *sys.argv])[1:]])

    def report_missing_package(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Report a missing package and how to install it; leave other errors to Python."""
        name = (getattr(error, "name", None) or "").partition(".")[0]
        if not isinstance(error, ModuleNotFoundError) or name in ("", *OURS):
            sys.__excepthook__(kind, error, trace)
            return
        package = PACKAGES.get(name, name)
        fix = "scripts/demo (once, to make the .venv that this program finds)"
        if in_venv:
            fix = f".venv/bin/python -m pip install -c constraints.txt {package}"
        sys.stdout.flush()
        print(f"{Path(sys.argv[0]).name}: {package} is not installed. Type: {fix}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(2)  # Python itself would end with status 1

    sys.excepthook = report_missing_package


def shared_videos() -> Path:
    place = Path(os.environ.get("DETECT_VIDEO_SHARED", ROOT.parent / "shared")) / "data/videos"
    if not place.is_dir():
        sys.exit(f"{place} does not exist; set DETECT_VIDEO_SHARED to the folder of shared data")
    return place


if _is_program():
    _run_under_venv()
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))
