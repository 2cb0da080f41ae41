"""Table 2: its rows, what its cells say together, and the sentence under it."""

import pytest

from reproduction import choices, lies, plans, sentences, summary, table2
from reproduction.table2 import FAMILIES, VARIANTS, Variant


def record(method, accuracies, success=0.0, seed=0, **more):
    found = {"dataset": "sc-ma", "method": method, "variant": "default", "seed": seed, "budget": 1}
    found |= {"settings": {}, "accuracies": accuracies, "attack_success": success}
    return found | {"worst_accuracy": min(accuracies)} | more


def line_of(records, method):
    (found,) = [x for x in summary.lines_of("table2", records) if x["method"] == method]
    return found


def test_every_method_has_every_prior_and_bound_that_it_can_take():
    for name, family in FAMILIES.items():
        attacked = {
            (cell.low, cell.clipped)
            for cell in VARIANTS.values()
            if cell.name == name and cell.attack == "backdoor"
        }
        priors = {True} if family.beside else {False, True}
        clipped = {False, True} if family.bounds else {False}
        assert attacked == {(low, bound) for low in priors for bound in clipped}
        if not family.beside:
            best = Variant(name, True, bool(family.bounds), "adaptive")
            assert best.key in VARIANTS
        assert all(cell.undefended.key in VARIANTS for cell in VARIANTS.values())


def test_the_rows_of_the_plan_are_methods_that_can_be_made():
    request = plans.Request(datasets=("sc-ma",), seeds=(0,))
    cells, left_out = plans.cells("table2", request, ["sc-ma"])
    assert not left_out
    assert [cell.method for cell in cells] == list(VARIANTS)
    for cell in cells:
        variant = VARIANTS[cell.method]
        assert variant.family.bounds.keys() <= cell.settings.keys() or not variant.clipped
        assert ("prior" in cell.settings) == variant.low
        if variant.low:
            assert cell.settings["prior"][-1] == pytest.approx(0.1 / 15)
        choices.make(cell.maker, 16, cell.settings)


def test_the_title_says_what_defends():
    assert VARIANTS["afl-low-clipped"].title == ", low prior, clipped"
    assert VARIANTS["aspire-ease-clipped"].title == ", bounded"
    assert VARIANTS["fedavg"].title == ""


def test_a_cost_is_paired_by_seed_and_site_with_the_undefended_clean_run():
    """Seed 0: .9 - .7 and .8 - .75, the most .2; seed 1: .1. Mean .15, standard error .05.

    By the means over seeds, as worst sites are compared, it would be another figure.
    """
    records = [
        record("afl-clean", [0.9, 0.8], seed=0),
        record("afl-clean", [0.9, 0.6], seed=1),
        record("afl-low-clipped", [0.7, 0.75], 0.5, seed=0),
        record("afl-low-clipped", [0.9, 0.5], 0.3, seed=1),
        record("afl-low-clipped", [0.0, 0.0], 1.0, seed=2),  # nothing to compare with
        record("afl-clipped-clean", [0.8, 0.8], seed=0),
        record("afl-low-clipped-adaptive", [0.6, 0.8], 0.9, seed=0),
    ]
    line = line_of(records, "afl-low-clipped")
    assert line["cost"]["mean"] == pytest.approx(0.15)
    assert line["cost"]["error"] == pytest.approx(0.05)
    assert line["clean_cost"]["mean"] == pytest.approx(0.1)
    assert line["adaptive_cost"]["mean"] == pytest.approx(0.3)
    assert "clean_cost" not in line_of([*records, record("afl-low", [0.1, 0.1])], "afl-low")
    assert line["adaptive_success"]["mean"] == 0.9
    assert {x["method"] for x in summary.lines_of("table2", records)} == {"afl-low-clipped"}


def test_an_aggregation_is_compared_with_the_plain_mean_and_a_lie_with_the_honest_form():
    assert VARIANTS["fedavg-median"].undefended.key == "fedavg-clean"
    assert VARIANTS["fedavg-clipped"].undefended.key == "fedavg-clean"
    assert VARIANTS[f"lie-{lies.FIXED}-clipped"].undefended.key == "aspire-consensus-clean"


def test_the_sentence_says_what_the_adversary_and_the_bounds_add():
    """The adversary: success .5 - .2 and .4 - .1, cost .1 - .0 twice; bounds: success .5 - .9."""
    records = []
    for seed, shift in ((0, 0.0), (1, -0.1)):
        records += [
            record("aspire-direct-clean", [0.9], seed=seed),
            record("aspire-direct-gamma0-clean", [0.9], seed=seed),
            record("aspire-direct-low-clipped", [0.8], 0.5 + shift, seed=seed),
            record("aspire-direct-low", [0.8], 0.9 + shift, seed=seed),
            record("aspire-direct-gamma0-low-clipped", [0.9], 0.2 + shift, seed=seed),
        ]
    said = sentences.about("table2", records)
    adds = "with the low prior and bounds, adds to ASPIRE, direct form: +30.0 ± 0.0 and +10.0 ± 0.0"
    assert adds in said
    adds = "the bounds, with the low prior, add to ASPIRE, direct form: -40.0 ± 0.0 and +0.0 ± 0.0"
    assert adds in said
    assert "±" not in sentences.about("table2", records[:5]).partition(":")[2]  # of one seed
    assert sentences.about("table2", records[:1]) == ""


def test_what_the_stamps_do_by_themselves_is_said():
    said = sentences.about("table2", [record("fedavg-clean", [0.9], 0.03, adaptive_success=0.2)])
    assert "without an attacker FedAvg sends 3.0 % of the samples with the fixed stamp" in said
    assert "20.0 % of those with the spread one" in said


def test_table2_variants_are_told_apart_by_their_keys():
    cells = list(table2.variants())
    assert len({cell.key for cell in cells}) == len(cells)
