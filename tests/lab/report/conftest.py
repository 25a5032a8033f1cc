"""Fixtures: a browser, and the report of the module's session."""

import pytest

from detector.lab.report.page import page
from detector.lab.session.read import read_session
from tests.lab.report.browser import started


@pytest.fixture(scope="package")
def browser(tmp_path_factory):
    yield from started(tmp_path_factory.mktemp("chromium"))


@pytest.fixture(scope="module")
def report(session):
    file = session / "report.html"
    file.write_bytes(page(read_session(session)))
    return file
