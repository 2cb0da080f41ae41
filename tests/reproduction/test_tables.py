"""results/ is small, and the tables of docs/reproduction.md are those of its cells."""

from pathlib import Path

import pytest

from reproduction import page, pictures, results, tune
from reproduction.tables import TITLES, experiments_in, markdown
from tests.browser import Tab

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
COMMITTED = [name for name in TITLES if results.path_of(RESULTS, name).is_file()]
BEGIN, END = "<!-- aspire report results --tables -->", "<!-- the end of the tables -->"


def test_the_docs_show_what_the_report_prints():
    text = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    shown = text.split(BEGIN)[1].split(END)[0]
    assert shown.strip() == markdown(RESULTS).strip()


def test_the_committed_settings_are_those_that_the_committed_trials_choose():
    committed = tune.committed()
    trials = results.read(results.path_of(RESULTS, "tune"))
    assert tune.choose(list(trials.values()), committed["command"]) == committed


@pytest.mark.parametrize("name", COMMITTED)
def test_the_committed_files_are_as_the_command_writes_them(name, tmp_path):
    committed = results.path_of(RESULTS, name)
    written = results.path_of(tmp_path, name)
    results.add(written, results.read(committed).values())
    assert written.read_bytes() == committed.read_bytes()


def test_the_committed_files_are_small():
    sizes = [path.stat().st_size for path in RESULTS.glob("*.jsonl")]
    assert sum(sizes) <= 10_000_000
    assert len(sizes) <= 100


@pytest.mark.parametrize("name", COMMITTED)
def test_the_committed_files_have_what_the_charts_draw(name):
    records = list(results.read(results.path_of(RESULTS, name)).values())
    charts = pictures.draw(name, records[-1]["dataset"], records)
    for chart in charts:
        assert any(trace["y"] for trace in chart.figure["data"]), chart.title
    assert charts


def test_a_folder_without_experiments_is_one_sentence(tmp_path):
    with pytest.raises(ValueError, match=r"DIR=.*: expected a folder with run.json or"):
        experiments_in(tmp_path)


def test_the_page_in_a_browser(chromium, tmp_path):
    (tmp_path / "planes.jsonl").write_bytes(results.path_of(RESULTS, "planes").read_bytes())
    path = page.write(tmp_path, tmp_path / "page.html")
    with Tab(chromium, path.as_uri(), 375, "dark") as tab:
        assert tab.faults() == []
        assert len(tab.charts()) == 8
