"""The built wheel, unpacked and run from an empty folder, uses nothing of the checkout."""

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import CHECKOUT, night

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Make a site-packages folder, in which type checkers look for packages. It has the wheel's
    files, and links to all packages that are installed here except the project itself."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # a copy, since setuptools leaves a build folder in the source
    ignored = shutil.ignore_patterns(
        ".*", "build", "runs", "*.onnx", "*-detected*", "__pycache__", "*.egg-info"
    )
    shutil.copytree(CHECKOUT, source, ignore=ignored)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder]
    subprocess.run([*pip, source], check=True, capture_output=True, text=True)
    [wheel] = folder.glob("*.whl")
    venv.create(folder / "venv", symlinks=True)
    [site] = (folder / "venv").glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as content:
        content.extractall(site)
    [packages] = {
        Path(path) for path in sys.path if path.endswith("site-packages") and sys.prefix in path
    }
    for item in packages.iterdir():
        if item.suffix != ".pth" and not item.name.startswith(("detect_video", "__editable__")):
            (site / item.name).symlink_to(item)
    return site


def test_wheel_runs_with_its_packaged_model(site, tmp_path):
    clip = CHECKOUT / "videos/street.mp4"
    arguments = [clip, "--frames", "3"]
    environment = {**os.environ, "PYTHONPATH": str(site), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-S", "-m", "detector", *map(str, arguments)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "street-detected.mp4").exists()
    assert '"class":"vehicle"' in (tmp_path / "street-detected.jsonl").read_text()
    assert list((tmp_path / "cache/detect-video/engines").glob("*.onnx")), (
        "an installed package uses the user's cache"
    )


def test_wheel_contains_all_files_of_cfg(site):
    for path in (CHECKOUT / "cfg").rglob("*.*"):
        assert (
            site / "detector/cfg" / path.relative_to(CHECKOUT / "cfg")
        ).read_bytes() == path.read_bytes()


# Line of code -> whether it is correct.
CALLS = {
    "Detector(conf=0.3, classes=['person'], size=640, frames=None)": True,
    "Detector(track='sort')('a.jpg').to_df()": True,
    "Detector()([Image.new('RGB', (8, 8)), 'a.jpg'])[0].plot().shape": True,
    "Detector()('a.jpg').save('b.png')": True,
    "Detector(track=True, classes=[0], zones={'lines': {}})('a.jpg', classes=[0, 'person'])": True,
    "Detector().process('a.mp4', 'b.mp4', callback=lambda frame, found: print(found[0].box))": True,
    "Detector()('a.jpg', imgsz=320)": False,
    "Detector()('a.jpg').xyxy": False,
    "Detector(conf='0.3')": False,
    "Detector(cnf=0.3)": False,
    "Detector()(5)": False,
    "Detector().strem('a.mp4')": False,
    "Detector()('a.jpg').boxs": False,
    "detector.Detektor": False,
}
CHECKERS = {
    "mypy": ("--strict", "--no-error-summary", "--cache-dir", "cache", "--python-executable"),
    "pyright": ("--pythonpath",),
}


@pytest.mark.parametrize("checker", ["mypy", night("pyright")])
def test_type_checker_reports_only_the_wrong_calls(site, tmp_path, checker):
    """The checker reads README's example and ``CALLS``."""
    if find_spec(checker) is None or (checker == "pyright" and shutil.which("node") is None):
        pytest.skip(f"machine: {checker} is not installed, or it needs node")
    readme = "".join(re.findall(r"```python\n(.*?)```", (CHECKOUT / "README.md").read_text(), re.S))
    head = ["import detector", "from PIL import Image", "from detector import Detector"]
    (tmp_path / "readme.py").write_text(readme)
    (tmp_path / "calls.py").write_text("\n".join([*head, *CALLS, ""]))
    python = site.parents[2] / "bin/python"
    command = [sys.executable, "-m", checker, *CHECKERS[checker], python, "readme.py", "calls.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    errors = re.findall(r"(\w+\.py):(\d+)(?::\d+)?(?: -|:) error", done.stdout)
    wrong = {at for at, right in enumerate(CALLS.values(), len(head) + 1) if not right}
    assert set(errors) == {("calls.py", str(at)) for at in wrong}, done.stdout + done.stderr


def test_editable_install_is_a_path_file(tmp_path):
    """Packages in several folders would make it an import finder, which type checkers skip."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(CHECKOUT / name, source)
    for name in ("detector/core", "cfg"):
        (source / name).mkdir(parents=True)
    for name in ("detector/__init__.py", "detector/core/__init__.py"):
        shutil.copy(CHECKOUT / name, source / name)
    target = tmp_path / "target"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target]
    subprocess.run([*pip, "-e", source], check=True, capture_output=True)
    [path] = target.glob("*.pth")
    assert path.read_text().strip() == str(source)
