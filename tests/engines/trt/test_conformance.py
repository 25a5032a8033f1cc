"""What every engine must do, trt and rtx do on each of the fakes: all kinds of device memory, no
GPU.
"""

from __future__ import annotations

import pytest

from tests.conformance import test_engines as conformance
from tests.engines.trt.opening import EVERY
from tests.fakes.install import install
from tests.fakes.tensorrt_state import RTX_MAJOR


@pytest.fixture(params=[*EVERY, (RTX_MAJOR, "cuda-python")], ids=lambda one: f"{one[0]}-{one[1]}")
def machine(request, monkeypatch):
    return install(monkeypatch, *request.param)


@pytest.fixture
def name(machine) -> str:
    return machine.engine


@pytest.fixture
def computing(machine) -> str:
    return machine.engine


@pytest.fixture
def case(machine) -> conformance.Case:
    return conformance.Case(machine.engine, "fp32")


test_known_answers = conformance.test_known_answers_at_every_filling_of_a_batch
test_shapes_types_and_slots = conformance.test_shapes_types_and_slots
test_the_slot_is_untouched_by_infer = conformance.test_the_slot_is_untouched_by_infer
test_outputs_stay = conformance.test_outputs_stay_until_that_requests_next_infer
test_requests_in_several_threads_do_not_mix = (
    conformance.test_requests_in_several_threads_do_not_mix
)
test_close_twice_and_infer_after_it = conformance.test_close_twice_and_infer_after_it
test_no_thread_is_left_behind = conformance.test_no_thread_is_left_behind
test_invalid_graph_raises_engine_error = conformance.test_invalid_graph_raises_engine_error
test_a_description_that_is_not_the_graphs = (
    conformance.test_a_description_that_is_not_the_graphs_is_our_error
)
test_an_absent_library_names_its_cure = conformance.test_an_absent_library_names_its_cure
