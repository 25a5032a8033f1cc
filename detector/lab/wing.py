"""The wing for measuring. Adds the commands in commands/, and an audit of finished runs."""

from __future__ import annotations

from detector.core.wings import Adds

ADDS = Adds(closing=("detector.lab.audit.closing:closing_line",))
