"""Fixtures of all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real weights, photos and clips beside the checkout; absent at a user's."""
    folder = Path(os.environ.get("DETECT_VIDEO_SHARED", CHECKOUT.parent / "shared"))
    if not (folder / "data" / "weights").is_dir():
        pytest.skip("machine: no shared test data beside the checkout")
    return folder
