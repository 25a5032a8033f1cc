"""The NVTX domain, and the warning if a profiler would show no ranges."""

import sys
from pathlib import Path
from types import SimpleNamespace

import nvtx
import pytest
from nvtx._lib import lib

from detector.core.timeline.nvtx_ranges import DOMAIN, TOOL, ThreadRange, attach, warning_of


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set the variable that names a profiler's library. nvtx does not load the library so late."""
    library = tmp_path / "libToolsInjection64.so"
    library.touch()
    monkeypatch.setenv(TOOL, str(library))
    return library


def test_attach_without_a_tool_gives_no_domain_or_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOOL, raising=False)
    assert attach() == (None, None)
    assert warning_of(attach()) is None


def test_tool_that_does_not_respond_still_gets_ranges(tool: Path) -> None:
    # If no tool responds, nvtx returns a DummyDomain.
    assert isinstance(nvtx.get_domain(DOMAIN), lib.DummyDomain)
    domain, lost = attach()
    assert isinstance(domain, lib.Domain)
    assert lost is None
    one, other = ThreadRange(domain, "infer", "work"), ThreadRange(domain, "infer", "work")
    assert one.attributes is not other.attributes  # threads work on different frames
    one.push(one.attributes)
    one.pop()
    domain.mark(domain.get_event_attributes(message="loop batch=1"))
    domain.end_range(domain.start_range(domain.get_event_attributes(message="run")))


@pytest.mark.parametrize("name", ["Domain", "DomainHandle"])
def test_nvtx_without_the_expected_class_warns(
    tool: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    classes = {"Domain": lib.Domain, "DomainHandle": lib.DomainHandle}
    del classes[name]
    monkeypatch.setattr("nvtx._lib.lib", SimpleNamespace(**classes))
    assert attach().domain is None
    assert "'nvtx" in str(warning_of(attach()))


def test_missing_nvtx_warns_only_if_there_is_a_tool(
    tool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nvtx", None)
    assert "pip install nvtx" in str(warning_of(attach()))
    monkeypatch.delenv(TOOL)
    assert warning_of(attach()) is None


def test_disabled_nvtx_warns(tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nvtx.enabled", lambda: False)
    assert "unset NVTX_DISABLE" in str(warning_of(attach()))


def test_missing_tool_library_warns(tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool.unlink()
    assert str(tool) in str(warning_of(attach()))
