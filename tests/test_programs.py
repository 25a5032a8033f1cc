"""Programs of scripts/ and training/ in a new shell: each finds .venv, or shows what to type."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import CHECKOUT

PROGRAMS = sorted(
    path
    for folder in ("scripts", "training")
    for path in (CHECKOUT / folder).iterdir()
    if path.is_file() and os.access(path, os.X_OK)
)
BASE = f"{sys.base_prefix}/bin"


def run(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": f"{os.defpath}:{BASE}", "HOME": str(folder)}
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=240
    )


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_help_is_printed_from_any_folder(program, tmp_path):
    if not (CHECKOUT / ".venv/bin/detect-video").exists():
        pytest.skip("machine: this checkout has no .venv")
    done = run(tmp_path, program, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert program.name in done.stdout
    assert not (tmp_path / "runs").exists()


def make_program(folder: Path, *imports: str) -> Path:
    (folder / "scripts").mkdir()
    shutil.copy(CHECKOUT / "scripts/checkout.py", folder / "scripts")
    program = folder / "scripts/judge"
    lines = ["import checkout", *(f"import {name}" for name in imports), "import sys"]
    program.write_text("\n".join([*lines, "print(sys.executable, *sys.argv[1:])"]))
    return program


@pytest.fixture
def bare(tmp_path: Path) -> list[str | Path]:
    return [
        Path(BASE, f"python{sys.version_info.major}.{sys.version_info.minor}"),
        *"-E -s -S".split(),
    ]


def test_programs_run_with_the_python_of_venv(bare, tmp_path):
    venv = tmp_path / ".venv"
    subprocess.run([*bare, "-m", "venv", "--without-pip", venv], check=True)
    done = run(tmp_path, *bare, make_program(tmp_path), "--rounds", "3")
    assert done.stdout.split() == [str(venv / "bin/python"), "--rounds", "3"], done.stderr


@pytest.mark.parametrize("venv", [True, False])
def test_missing_package_is_reported_in_one_line_with_the_command(bare, tmp_path, venv):
    if venv:
        command = [*bare, "-m", "venv", "--without-pip", tmp_path / ".venv"]
        subprocess.run(command, check=True)
    done = run(tmp_path, *bare, make_program(tmp_path, "cv2"))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("judge: opencv-python-headless is not installed. Type: ")
    assert (".venv/bin/python -m pip install" in done.stderr) == venv
    assert ("scripts/demo" in done.stderr) != venv


def test_missing_module_of_our_own_shows_a_traceback(bare, tmp_path):
    done = run(tmp_path, *bare, make_program(tmp_path, "measuring.nothing"))
    assert done.returncode == 1
    assert "Traceback" in done.stderr
