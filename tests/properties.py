"""Settings of property tests: the same examples each time, and none is too slow for a busy machine.

hypothesis gives each example 200 ms, and ends a test whose examples are made slowly.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

STEADY = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
