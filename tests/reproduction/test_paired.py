"""Paired differences against figures that were computed by hand."""

import math

import pytest

from reproduction import paired


def test_a_difference_by_hand():
    # 2, 4, 6: mean 4, std 2, error 2/sqrt(3), t = 2 sqrt(3) at 2 degrees of freedom.
    # P(|T| > t) = 1 - t / sqrt(2 + t^2) there: 1 - sqrt(12/14)
    found = paired.difference([3.0, 6.0, 9.0], [1.0, 2.0, 3.0])
    assert found.mean == pytest.approx(4.0)
    assert found.error == pytest.approx(2.0 / math.sqrt(3.0))
    assert found.p == pytest.approx(1.0 - math.sqrt(12.0 / 14.0))
    with pytest.raises(ValueError, match="1 pairs: expected at least 2"):
        paired.difference([1.0], [2.0])


def test_equal_differences_have_no_error():
    assert paired.difference([1.0, 2.0], [1.0, 2.0]) == paired.Difference(0.0, 0.0, 1.0)
    assert paired.difference([2.0, 3.0], [1.0, 2.0]) == paired.Difference(1.0, 0.0, 0.0)


@pytest.mark.parametrize(  # the usual table of Student's t
    ("freedom", "quantile", "p"),
    [
        (1, 12.706205, 0.05),
        (2, 4.302653, 0.05),
        (3, 3.182446, 0.05),
        (5, 4.032143, 0.01),
        (9, 2.262157, 0.05),
        (9, 4.780913, 0.001),
        (10, 3.169273, 0.01),
    ],
)
def test_students_t(freedom, quantile, p):
    assert paired.two_sided(quantile, freedom) == pytest.approx(p, rel=1e-5)
    assert paired.two_sided(-quantile, freedom) == pytest.approx(p, rel=1e-5)
    assert paired.two_sided(0.0, freedom) == pytest.approx(1.0)


def test_holm_by_hand():
    # sorted 0.01 x 4, 0.02 x 3, 0.03 x 2, 0.04 x 1, none below the one before
    assert paired.holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert paired.holm([0.6, 0.9]) == [1.0, 1.0]
    assert paired.holm([]) == []


def test_a_verdict_needs_both():
    small, sure = paired.Difference(1.0, 0.6, 0.001), paired.Difference(-3.0, 1.0, 0.001)
    assert small.verdict(0.001) == "no difference shown"
    assert sure.verdict(0.2) == "no difference shown"
    assert sure.verdict(0.01) == "behind"
    assert paired.Difference(3.0, 1.0, 0.001).verdict(0.01) == "ahead"


def record(method, seed, last, selected, variant="default"):
    return {
        "dataset": "sc-ma",
        "method": method,
        "variant": variant,
        "seed": seed,
        "budget": 10,
        "worst_accuracy": last,
        "selected": {"worst_accuracy": selected},
        "accuracies": [last, 0.99],
        "test_samples": [100, 1000],
    }


def test_our_forms_against_the_others_over_common_seeds():
    ours = [record("aspire-direct", s, 0.60 + 0.001 * (s % 2), 0.5) for s in range(10)]
    afl = [record("afl", s, 0.50, 0.5) for s in range(10)]
    fedavg = [record("fedavg", 0, 0.1, 0.1), record("fedavg", 20, 0.1, 0.1)]
    tuned = [record("afl", s, 0.50, 0.5, "tuned") for s in range(3)]
    (found,) = paired.tables([*ours, *afl, *fedavg, *tuned])
    head, *rows = found
    assert head[1:] == ["ASPIRE, direct form, last", "ASPIRE, direct form, selected"]
    # differences 10.0 and 10.1 points in turn: std 0.0527, error 0.0167
    first = ["+10.05 ± 0.02, ahead", "+0.00 ± 0.00, no difference shown"]
    assert sorted(rows) == [["AFL", *first], ["FedAvg", "-", "-"]]  # one common seed


def test_the_sampling_error_of_few_test_samples():
    text = paired.sampling([record("afl", 0, 0.5, 0.5), record("afl", 1, 0.5, 0.5)])
    assert "100 test samples" in text
    assert "5.0 points" in text  # the root of 0.25 / 100
