"""Agreement between scripts/bounds_check, setup.py, constraints.txt and the tests."""

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.utils import canonicalize_name

from tests.conftest import CHECKOUT, load_program

# Packages of setup.py that constraints.txt does not pin -> the reason.
NOT_PINNED = {
    "tensorrt": "its libraries need a GPU; tests take the bindings that scripts/set_up.sh names",
    "cuda-python": "needs a GPU; tests take the wheel that scripts/set_up.sh names",
    "pycuda": "is compiled against CUDA where it is installed",
    "atheris": "only scripts/attack --guided needs it; no test does",
}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_program("scripts/bounds_check")


@pytest.fixture(scope="module")
def requirements(script: ModuleType) -> Any:
    return script.read_setup((CHECKOUT / "setup.py").read_text(encoding="utf-8"))


def test_each_extra_has_existing_tests(script, requirements):
    assert set(script.PARTS) == set(requirements)
    for part, packages in requirements.items():
        part_tests = script.PARTS[part]
        assert part_tests.cannot or len(part_tests.modules.split()) >= min(len(packages), 1), part
        for path in part_tests.tests.split():
            assert (CHECKOUT / path).exists(), path


def test_tests_that_need_a_package_are_listed_for_its_extra(script):
    part_of = {
        module.partition(".")[0]: part
        for part, part_tests in script.PARTS.items()
        for module in part_tests.modules.split()
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


def test_each_package_of_setup_py_is_pinned_within_its_bounds(script, requirements):
    pinned = script.pins((CHECKOUT / "constraints.txt").read_text(encoding="utf-8"))
    for packages in requirements.values():
        for one in packages:
            name = canonicalize_name(one.name)
            assert (name in pinned) is not (name in NOT_PINNED), f"{name}: pin it, or say why not"
            if name in pinned:
                assert pinned[name] in one.specifier, one


def test_packages_that_set_up_sh_installs_are_pinned(script):
    """scripts/set_up.sh installs supervision and its dependencies with constraints.txt."""
    text = Path(CHECKOUT / "scripts/set_up.sh").read_text(encoding="utf-8")
    command = re.search(r"--target \"\$folder\" -c \S+ (.*?)\|\|", text, re.S)
    assert command is not None
    names = command[1].replace("\\", " ").split()
    assert "supervision" in names
    pinned = script.pins((CHECKOUT / "constraints.txt").read_text(encoding="utf-8"))
    assert {canonicalize_name(name) for name in names} <= set(pinned)
