"""scripts/bounds_check without making an environment; and what setup.py, constraints.txt and the
tests say of each other."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.conftest import CHECKOUT, load_program

# What setup.py names and constraints.txt does not pin, with the reason.
NOT_PINNED = {
    "tensorrt": "its libraries need a GPU; tests take the bindings that scripts/set_up.sh names",
    "cuda-python": "needs a GPU; tests take the wheel that scripts/set_up.sh names",
    "pycuda": "is compiled against CUDA where it is installed",
    "mlflow": "tests take mlflow-skinny, less than half of the packages",
    "atheris": "for scripts/attack --guided alone, outside the tests",
}
SETUP = """
from setuptools import setup
setup(
    name="x",
    install_requires=["numpy>=1.26", "PyYAML"],
    extras_require={"ray": ["ray[client]>=2.60,<3"], "http": []},
)
"""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_program("scripts/bounds_check")


@pytest.fixture(scope="module")
def asked(script: ModuleType) -> Any:
    return script.read_setup((CHECKOUT / "setup.py").read_text(encoding="utf-8"))


def test_setup_py_is_read_and_not_run(script):
    found = script.read_setup(SETUP)
    assert {part: [one.line for one in own] for part, own in found.items()} == {
        "core": ["numpy>=1.26", "PyYAML"],
        "ray": ["ray[client]>=2.60,<3"],
        "http": [],
    }
    [ray] = found["ray"]
    assert (ray.name, ray.extras, ray.bound, ray.below) == ("ray", "[client]", "2.60", "3")


@pytest.mark.parametrize("text", ["numpy<3", "numpy>=1,!=2", "numpy==1", "numpy~=1.2", "a; x", ""])
def test_what_has_no_one_lowest_version_is_refused(script, text):
    with pytest.raises(ValueError, match=r"setup\.py"):
        script.parse_requirement(text)


@pytest.mark.parametrize(
    ("version", "bound", "exactly"),
    [
        ("2.4.0", "2.4", True),
        ("2.4", "2.4.0", True),
        ("4.10.0.82", "4.10", True),  # its maker counts on
        ("12.535.77", "12.535", True),
        ("2.13.0+cpu", "2.13", True),
        ("2.40", "2.4", False),
        ("0.2.12", "0.2.10", False),
        ("2026.10.0", "2026.9", False),
    ],
)
def test_the_lowest_of_a_bound(script, version, bound, exactly):
    assert script.is_exactly(version, bound) is exactly


def test_a_bound_that_nobody_can_install_does_not_hold(script):
    own = [script.parse_requirement(line) for line in ("gcsfs>=2026.9", "numpy>=1.26", "rich")]
    versions = {"gcsfs": "2026.10.0", "numpy": "1.26.0", "rich": "15.0.0"}
    [told] = script.beyond_bounds(own, versions)
    assert told.startswith("gcsfs>=2026.9: 2026.10.0 ")


@pytest.mark.parametrize(
    ("reason", "part", "absent"),
    [
        ("machine: torch is not installed", "torch", True),
        ("machine: engine torch: torch is not installed; install it with: ...", "torch", True),
        ("could not import 'paho.mqtt': No module named 'paho'", "mqtt", True),
        ("needs openvino, which writes and reads the files", "openvino", True),
        ("machine: Pillow is not installed", "font", True),
        ("machine: faster-coco-eval is not installed", "eval", True),
        ("machine: gcsfs and gcp-storage-emulator are not installed", "gs", True),
        ("machine: torch is not installed", "openvino", False),
        ("machine: this CPU has no bf16, or this torch no oneDNN", "torch", False),
    ],
)
def test_a_skip_for_want_of_the_package_is_told_from_others(script, reason, part, absent):
    assert script.lacks(reason, script.PARTS[part]) is absent


def test_such_a_skip_counts_as_a_failure(script):
    xml = """<testsuites><testsuite>
    <testcase classname="tests.engines.test_a" name="test_one"/>
    <testcase classname="tests.engines.test_a" name="test_two"><failure message="no"/></testcase>
    <testcase classname="tests.engines.test_a" name="test_three"><error message="no"/></testcase>
    <testcase classname="" name="tests.engines.test_torch">
      <skipped message="machine: torch is not installed"/></testcase>
    <testcase classname="tests.a" name="test_gpu"><skipped message="no GPU"/></testcase>
    </testsuite></testsuites>"""
    result = script.Result("torch", "lowest", "3.11", [])
    script.read_tests(xml, script.PARTS["torch"], result)
    assert (result.passed, result.skipped, len(result.failed)) == (1, 1, 3)
    assert result.failed[0] == "tests/engines/test_a::test_two"
    assert "torch is not installed" in result.failed[2]
    assert not result.holds


def test_what_a_part_names_is_not_pinned_for_its_tests(script):
    asked = script.read_setup(SETUP.replace("numpy>=1.26", "pytest>=9.0"))
    lines = script.wanted_lines("ray", asked, {"pytest": "9.2.0", "hypothesis": "6.1"})
    assert lines[:3] == ["pytest>=9.0", "PyYAML", "ray[client]>=2.60,<3"]
    assert "pytest==9.2.0" not in lines
    assert {"hypothesis==6.1", "pytest-timeout"} <= set(lines)


def test_the_table_has_a_row_for_each_package(script):
    asked = script.read_setup(SETUP)
    lines = [one.line for one in asked["core"]]
    low = script.Result("core", "lowest", "3.11", lines, {"numpy": "1.26.0", "PyYAML": "6.0"}, 7)
    low.failed.append("tests/test_a::test_b")
    ray = script.Result("ray", "highest", "3.11", lines, cannot="no network")
    text = script.table(asked, [low, ray], "3.11")
    assert "| core | `numpy>=1.26` | 1.26.0 | 7 passed, 1 FAILED |  |  |" in text
    assert "| ray | `ray[client]>=2.60,<3` |  |  | not run |  |" in text
    assert text.endswith("- ray: no network")


@pytest.mark.slow
def test_a_checker_that_finds_something_has_failed(script):
    inside, short = Path(sys.executable), "ruff check --isolated --select E501 setup.py"
    assert list(script.run_checkers(inside, ("ruff --version", f"{short} --line-length 200"))) == []
    (only,) = script.run_checkers(inside, ("ruff --version", f"{short} --line-length 40"))
    assert only.startswith(f"{short} --line-length 40: Found ")


def test_every_extra_has_its_tests(script, asked):
    assert set(script.PARTS) == set(asked)
    for part, own in asked.items():
        given = script.PARTS[part]
        assert given.cannot or len(given.modules.split()) >= min(len(own), 1), part
        for path in given.tests.split():
            assert (CHECKOUT / path).exists(), path


def test_tests_that_skip_without_a_package_are_among_those_of_its_extra(script):
    part_of = {
        module.partition(".")[0]: part
        for part, given in script.PARTS.items()
        for module in given.modules.split()
        if part not in (script.CORE, "test")
    }
    found = 0
    for file in sorted((CHECKOUT / "tests").rglob("test_*.py")):
        text = file.read_text(encoding="utf-8")
        for module in set(re.findall(r"importorskip\(\s*\"(\w+)[\w.]*\"", text)) & set(part_of):
            folders = script.PARTS[part_of[module]].tests.split()
            assert any(file.is_relative_to(CHECKOUT / path) for path in folders), (module, file)
            found += 1
    assert found > 30


def test_every_package_of_setup_py_is_pinned_within_its_bound(script, asked):
    pinned = script.pins((CHECKOUT / "constraints.txt").read_text(encoding="utf-8"))
    for own in asked.values():
        for one in own:
            name = script.canonical(one.name)
            assert (name in pinned) is not (name in NOT_PINNED), f"{name}: pin it, or say why not"
            if name in pinned:
                assert pinned[name] in Requirement(one.line).specifier, one.line


def test_what_the_scripts_install_is_pinned(script):
    """scripts/set_up.sh takes its versions of supervision and what that needs from there."""
    text = Path(CHECKOUT / "scripts/set_up.sh").read_text(encoding="utf-8")
    command = re.search(r"--target \"\$folder\" -c \S+ (.*?)\|\|", text, re.S)
    assert command is not None
    names = command[1].replace("\\", " ").split()
    assert "supervision" in names
    pinned = script.pins((CHECKOUT / "constraints.txt").read_text(encoding="utf-8"))
    assert {script.canonical(name) for name in names} <= set(pinned)
