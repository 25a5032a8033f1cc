"""The built wheel, unpacked into a folder of its own and run from an empty one: nothing of the
checkout is used.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import CHECKOUT


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The wheel's files, and links to the libraries that are installed here, but not to the
    project.
    """
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # setuptools leaves a build folder where it builds
    ignored = shutil.ignore_patterns(
        ".*", "build", "runs", "*.onnx", "*-detected*", "__pycache__", "*.egg-info"
    )
    shutil.copytree(CHECKOUT, source, ignore=ignored)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        folder,
        source,
    ]
    subprocess.run(command, check=True, capture_output=True, text=True)
    [wheel] = folder.glob("*.whl")
    site = folder / "site"
    with zipfile.ZipFile(wheel) as content:
        content.extractall(site)
    [packages] = {
        Path(path) for path in sys.path if path.endswith("site-packages") and sys.prefix in path
    }
    for item in packages.iterdir():
        if item.suffix != ".pth" and not item.name.startswith(("detect_video", "__editable__")):
            (site / item.name).symlink_to(item)
    return site


@pytest.mark.slow
def test_it_runs_with_its_own_model(site, tmp_path):
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
    assert (tmp_path / "street-ort-detected.mp4").exists()
    assert '"class":"vehicle"' in (tmp_path / "street-ort-detected.jsonl").read_text()
    assert list((tmp_path / "cache/detect-video/engines").glob("*.onnx")), (
        "an installed package uses the user's cache"
    )


@pytest.mark.slow
def test_every_packaged_file_is_in_it(site):
    for path in (CHECKOUT / "cfg").rglob("*.*"):
        assert (
            site / "detector/cfg" / path.relative_to(CHECKOUT / "cfg")
        ).read_bytes() == path.read_bytes()
