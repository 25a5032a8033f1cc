"""Conformance of trt (with every CUDA package) and rtx on fake libraries, without a GPU."""

import pytest

from tests.conformance import test_engines as conformance
from tests.engines.trt.opening import EVERY
from tests.fakes.install import install_fake_tensorrt
from tests.fakes.tensorrt_state import RTX_MAJOR


@pytest.fixture(params=[*EVERY, (RTX_MAJOR, "cuda-python")], ids=lambda one: f"{one[0]}-{one[1]}")
def machine(request, monkeypatch):
    return install_fake_tensorrt(monkeypatch, *request.param)


@pytest.fixture
def name(machine) -> str:
    return machine.engine


@pytest.fixture
def computing(machine) -> str:
    return machine.engine


@pytest.fixture
def case(machine) -> conformance.Case:
    return conformance.Case(machine.engine, "fp32")


test_known_answers = conformance.test_full_and_partial_batches_give_the_known_answers
test_slots_and_outputs_have_the_declared_shapes_and_types = (
    conformance.test_slots_and_outputs_have_the_declared_shapes_and_types
)
test_infer_does_not_change_its_slot = conformance.test_infer_does_not_change_its_slot
test_outputs_stay_valid = conformance.test_outputs_stay_valid_until_their_request_infers_again
test_requests_in_several_threads_do_not_mix = (
    conformance.test_requests_in_several_threads_do_not_mix
)
test_close_may_repeat_and_infer_after_close_raises = (
    conformance.test_close_may_repeat_and_infer_after_close_raises
)
test_close_ends_every_thread = conformance.test_close_ends_every_thread
test_invalid_graph_raises_engine_error = conformance.test_invalid_graph_raises_engine_error
test_description_that_differs_from_the_graph = (
    conformance.test_description_that_differs_from_the_graph_raises
)
test_missing_library_error_says_how_to_install_it = (
    conformance.test_missing_library_error_says_how_to_install_it
)
