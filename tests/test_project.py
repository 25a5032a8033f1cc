"""What a host, an index and other tools read agrees with setup.py, scripts/ and each other."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.conftest import CHECKOUT


@pytest.mark.slow
def test_site_has_no_warning_and_loads_nothing_from_elsewhere(tmp_path):
    pytest.importorskip("mkdocstrings")
    command = [sys.executable, CHECKOUT / "scripts/docs", "--to", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr  # with a warning it is 1
    pages = {page.name: page.read_text(encoding="utf-8") for page in tmp_path.rglob("*.html")}
    assert re.findall(r'(?:src=|<link[^>]+href=)"https?:[^"]+', " ".join(pages.values())) == []
    assert 'id="detector.core.api.Detector.stream"' in pages["api.html"]
    assert "street.mp4" in pages["report.html"]
    found = json.loads((tmp_path / "search/search_index.json").read_text(encoding="utf-8"))["docs"]
    assert any("skip-still" in one["text"] for one in found)
