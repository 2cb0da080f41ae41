"""The tables of docs/reproduction.md are those of the cells under results/."""

from pathlib import Path

import pytest

from aspire.experiments import summary
from aspire.experiments.tables import experiments_in, markdown
from aspire.runtimes import rundir

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- aspire report results --tables -->", "<!-- the end of the tables -->"


def test_the_docs_show_what_the_report_prints():
    page = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    shown = page.split(BEGIN)[1].split(END)[0]
    assert shown.strip() == markdown(ROOT / "results").strip()


@pytest.mark.parametrize("name", ["table1", "table2"])
def test_the_summary_is_that_of_the_committed_cells(name):
    folder = ROOT / "results" / name
    figures = ("worst_accuracy", "std_accuracy", "attack_success")
    told = {
        (x["dataset"], x["method"], x["variant"]): [x["seeds"], *(x.get(f) for f in figures)]
        for x in rundir.read_json(folder / "summary.json")
    }
    found = {
        (x["dataset"], x["method"], x["variant"]): [x["seeds"], *(x.get(f) for f in figures)]
        for x in summary.summarise(summary.records_in(folder))
    }
    assert told == found


def test_a_folder_without_experiments_is_one_sentence(tmp_path):
    with pytest.raises(ValueError, match=r"DIR=.*: expected a folder with NAME/summary.json in it"):
        experiments_in(tmp_path)
