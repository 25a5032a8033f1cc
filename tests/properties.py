"""Settings of property tests: always the same examples, and no time limits.

By default, hypothesis fails if an example takes 200 ms or if generating examples is slow, which
happens on a busy machine.
"""

from hypothesis import HealthCheck, settings

STEADY = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
