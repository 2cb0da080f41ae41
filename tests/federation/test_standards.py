"""How inputs are standardised, over the wire: what a server may say, and what a site tells."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

pytest.importorskip("grpc", reason="needs aspire-ease[federation]")

from aspire.cli.federation import one_site, standardize_of, work_options
from aspire.engines.grpc.connections import Terms
from aspire.engines.grpc.messages import Refusal, Shape
from aspire.engines.grpc.policy import Guard, Policy
from aspire.engines.grpc.standards import standardization_in, with_standardization
from aspire.engines.grpc.wire_pb2 import Settings
from aspire.engines.survey import SURVEY, Answer, question, survey
from aspire.problem.standardization import Standardization
from aspire.types import Task
from tests.helpers import blobs, linear

BY = Standardization(torch.tensor([1.0, -2.0, 3.0]), torch.tensor([1.0, 2.0, 0.5]))
TERMS = Terms(Shape(8, "float32", 1000), Settings(batch_size=8, method="afl", arguments="{}"), b"")


def module(wanted: bool | None) -> ModuleType:
    """FILE.py; None: it has no standardize()."""
    found = ModuleType("file")
    found.__file__ = "file.py"
    found.model = linear
    if wanted is not None:
        found.standardize = lambda: wanted
    return found


def at_the_site(wanted: bool | None, settings: Settings):
    options = work_options(settings)
    options |= standardize_of(module(wanted), standardization_in(settings, "float32"))
    return one_site(module(wanted), "a", blobs(1)["s0"], options)[1]


def test_it_arrives_as_it_was_sent():
    settings = with_standardization(TERMS, BY).settings
    found = standardization_in(settings, "float32")
    assert torch.equal(found.mean, BY.mean)
    assert torch.equal(found.std, BY.std)
    assert settings.method == "afl"
    assert standardization_in(TERMS.settings, "float32") is None
    inputs = blobs(1)["s0"]["train"][0]
    assert torch.equal(at_the_site(True, settings).train.pair[0], (inputs - BY.mean) / BY.std)


@pytest.mark.parametrize("wanted", [None, False])
def test_a_site_whose_file_does_not_ask_for_it_tells_nothing_and_takes_nothing(wanted):
    site = at_the_site(wanted, TERMS.settings)
    report = survey(site, question(0, Answer()))
    assert report.scalars == {"samples": 30.0, "numbers": 0.0}
    assert not report.vectors
    with pytest.raises(ValueError, match="has no standardize"):
        at_the_site(wanted, with_standardization(TERMS, BY).settings)
    assert (
        survey(at_the_site(True, TERMS.settings), question(0, Answer())).scalars["numbers"] == 6.0
    )


ODD = {
    "no std": Settings(mean=bytes(12)),
    "unlike": Settings(mean=bytes(12), std=bytes(8)),
    "half a number": Settings(mean=bytes(11), std=bytes(11)),
    "a std of 0": Settings(mean=bytes(12), std=bytes(12)),
    "not finite": Settings(mean=b"\xff" * 12, std=torch.ones(3).numpy().tobytes()),
}


@pytest.mark.parametrize("settings", ODD.values(), ids=ODD.keys())
def test_what_standardises_nothing_is_refused(settings):
    with pytest.raises(ValueError, match="mean and std of"):
        standardization_in(settings, "float32")


def test_another_number_of_inputs_is_refused():
    settings = with_standardization(TERMS, Standardization(torch.zeros(2), torch.ones(2))).settings
    with pytest.raises(ValueError, match="3 numbers in a sample: expected 2"):
        at_the_site(True, settings)


def test_too_many_inputs_for_a_welcome():
    many = Standardization(torch.zeros(7169), torch.ones(7169))
    with pytest.raises(ValueError, match="7169 numbers in a sample: expected at most 7168"):
        with_standardization(TERMS, many)


def test_a_survey_is_a_question_like_an_evaluation():
    guard = Guard(Policy(max_evaluations_per_minute=1), TERMS.shape)
    asked = question(0, Answer())
    for odd in (
        Task(0, 5, SURVEY, {}, {"part": 0.0}),
        Task(0, -5, SURVEY, {"w": torch.zeros(8)}, {"part": 0.0}),
        Task(0, -5, SURVEY, {}, {"part": 0.5}),
        Task(0, -5, SURVEY, {}, {}),
    ):
        with pytest.raises(Refusal):
            Guard(Policy(), TERMS.shape).check(odd, {})
    guard.check(asked, {})
    with pytest.raises(Exception, match="more than 1 evaluations a minute"):
        guard.check(asked, {})
