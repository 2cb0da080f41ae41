"""`aspire report`: the page says what the files of the run say, and no file can make it do more."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("plotly", reason="needs aspire-ease[report]")
from aspire.api import train
from aspire.cli import main
from aspire.pages import Chart, Table
from aspire.pages.record import read
from aspire.pages.report import page_of, report
from aspire.pages.trail import Trail, gaps
from aspire.problem.intervals import wilson
from aspire.runs import files as rundir
from tests.browser import LOOKS, Tab
from tests.helpers import blobs, linear
from tests.pages.runs import EVIL, finished, stopped


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("runs") / "robust")


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stopped(tmp_path_factory.mktemp("runs") / "half")


def aspire(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    return done.exit_code, done.output


def table_of(*directories: Path) -> Table:
    return next(block for block in report(directories).blocks if isinstance(block, Table))


def chart(directory: Path, title: str) -> Chart:
    charts = [block for block in report([directory]).blocks if isinstance(block, Chart)]
    return next(one for one in charts if one.title.startswith(title))


def text_of(path: Path) -> str:
    """The page without its tags."""
    page = path.read_text(encoding="utf-8")
    body = page[page.index("<main>") : page.index("</main>")]
    return unescape(re.sub(r"<[^>]+>", " ", body))


def test_the_page_has_every_site_with_its_n_and_interval(run: Path, tmp_path: Path) -> None:
    code, text = aspire("report", run, "--out", tmp_path / "page.html")
    assert (code, text) == (0, f"Page: {tmp_path / 'page.html'}\n")
    result = json.loads((run / "result.json").read_text())
    table = table_of(run)
    at = {head: place for place, head in enumerate(table.head)}
    for row, accuracy, loss in zip(
        table.rows, result["accuracies"], result["test_losses"], strict=True
    ):
        low, high = (100 * end for end in wilson(round(30 * accuracy), 30))
        assert row[at["test accuracy (%)"]] == f"{100 * accuracy:.1f} ({low:.1f} to {high:.1f})"
        assert row[at["test loss"]].startswith(f"{loss:.4f} (")
        assert (row[at["test n"]], row[at["val n"]], row[at["train n"]]) == ("30", "10", "20")
    (worst,) = table.worst
    assert result["accuracies"][worst] == min(result["accuracies"])
    text = text_of(tmp_path / "page.html")
    assert table.rows[worst][0] in text
    assert f"has {100 * min(result['accuracies']):.1f} % accuracy on its test part (n = 30" in text


def test_figures_that_the_run_has_intervals_for_are_shown_with_them(
    run: Path, tmp_path: Path
) -> None:
    result = rundir.read_record(run / "result.json", sealed=True)
    some = {"value": 0.8125, "n": 30, "low": 0.75, "high": 0.875}
    result["metrics"] = {"f1": {"test": [some, *[None] * 9]}}
    result["certificate"] |= {"alpha": 0.05, "accuracy": 0.5, "site": EVIL}
    copy = folder_with(run, tmp_path / "copy", result)
    table = table_of(copy)
    place = list(table.head).index("test f1")
    assert [row[place] for row in table.rows] == ["0.8125 (0.7500 to 0.8750)", *["-"] * 9]
    text = " ".join(getattr(block, "text", "") for block in report([copy]).blocks)
    assert "With confidence 95 %" in text
    assert f"no site's accuracy is below 50.0 % ({EVIL})" in text


def folder_with(run: Path, copy: Path, result: dict) -> Path:
    copy.mkdir()
    for name in ("run.json", "history.jsonl", "status.json", "events.jsonl"):
        (copy / name).write_bytes((run / name).read_bytes())
    rundir.write_json(copy / "result.json", result, sealed=True)
    return copy


def test_a_run_that_was_stopped_has_its_page(half: Path) -> None:
    code, text = aspire("report", half)
    assert code == 0, text
    text = text_of(half / "report.html")
    assert "The run has not ended: it is at iteration 200, last evaluated at 200." in text
    assert "hospital 3" in text


def test_the_page_of_a_saved_run(tmp_path: Path) -> None:
    train(linear(), blobs(), iterations=20).save(tmp_path / "run")
    assert aspire("report", tmp_path / "run")[0] == 0
    assert "the run's log has no events" in text_of(tmp_path / "run" / "report.html")


def test_absences_are_those_of_the_result_and_of_the_log(run: Path, half: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    data = chart(run, "Who was away").figure["data"][0]
    found = [(x["from"], x["to"] or 400) for x in result["absences"]]
    assert [(b, b + x) for b, x in zip(data["base"], data["x"], strict=True)] == found
    (since, until), *_ = [(x.since, x.until) for x in read(half).absences()]
    assert since <= found[0][0] <= since + 20  # as near as evaluations tell
    assert until is not None
    assert until <= found[0][1] <= until + 20


def test_staleness_is_the_steps_between_two_reports(tmp_path: Path) -> None:
    """Sites 0 and 1 take turns, then site 1 waits for five steps of site 0."""
    order = [0, 1, 0, 1, 0, 0, 0, 0, 0, 1]
    lines = [
        json.dumps({"n": n, "time": float(n), "event": "report", "worker": j})
        for n, j in enumerate(order)
    ]
    path = tmp_path / "events.jsonl"
    path.write_text("\n".join(lines[:6]) + "\n" + lines[6][:20])
    trail = Trail(path, 2)
    trail.follow()
    assert [len(reports) for reports in trail.reports] == [4, 2]
    path.write_text("\n".join(lines) + "\n")
    trail.follow()
    found = gaps(trail, [4.0, 9.0], [4, 9])
    assert found == [[2.0, 1.0], [2.0, 6.0]]
    path.write_text(lines[0] + "\n")  # as `resume` cuts it
    trail.follow()
    assert [len(reports) for reports in trail.reports] == [1, 0]


def test_several_runs_stand_side_by_side(run: Path, half: Path, tmp_path: Path) -> None:
    code, text = aspire("report", run, half, "--out", tmp_path / "page.html")
    assert code == 0, text
    head = table_of(run, half).head
    assert "robust: test accuracy (%)" in head
    assert "half: test accuracy (%)" in head
    page = page_of([read(run), read(half)])
    charts = {block.title: block for block in page.blocks if isinstance(block, Chart)}
    names = [trace["name"] for trace in charts["Worst case over the set"].figure["data"]]
    assert names == ["robust", "half"]
    assert re.search(
        r"Of 2 runs (robust|half) serves its worst site best", text_of(tmp_path / "page.html")
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("missing",), "expected a folder"),
        (("run", "missing"), "run.json"),
        (("run",) * 9, "9 runs: expected 1 to 8"),
        (("run", "--tables"), "--tables: expected one folder of experiments"),
    ],
)
def test_bad_input_is_one_sentence(
    run: Path, tmp_path: Path, arguments: tuple, sentence: str
) -> None:
    given = [
        run if word == "run" else tmp_path / word if word == "missing" else word
        for word in arguments
    ]
    code, text = aspire("report", *given)
    assert code == 2
    assert sentence in text


def test_a_half_written_line_counts_only_against_a_run_that_has_ended(
    run: Path, half: Path, tmp_path: Path
) -> None:
    for folder in (run, half):
        copy = tmp_path / folder.name
        copy.mkdir()
        for path in folder.glob("*.json*"):
            (copy / path.name).write_bytes(path.read_bytes())
        with open(copy / "history.jsonl", "a") as file:
            file.write('{"t": 420, "ti')
    assert len(read(tmp_path / "half").history) == len(read(half).history)
    with pytest.raises(ValueError, match=r"history.jsonl: the last line is not whole"):
        read(tmp_path / "robust")


@pytest.mark.parametrize(
    "line",
    [
        "[1]",
        '{"t": 1}',
        '{"t": 1, "time": 0, "weights": [1]}',
        '{"t": 1, "time": 0, "planes": "x"}',
    ],
)
def test_a_strange_line_of_history_is_one_sentence(half: Path, tmp_path: Path, line: str) -> None:
    for path in half.glob("*.json*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "history.jsonl").write_text(f"{line}\n")
    code, text = aspire("report", tmp_path)
    assert code == 2
    assert "history.jsonl, line 1: " in text


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_in_a_browser(
    chromium, run: Path, half: Path, tmp_path: Path, width: int, scheme: str
) -> None:
    path = tmp_path / "page.html"
    assert aspire("report", run, "--out", path)[0] == 0
    with Tab(chromium, path.as_uri(), width, scheme) as tab:
        assert tab.faults() == []
        assert EVIL in tab.text()
    assert aspire("report", run, half, "--out", path)[0] == 0
    with Tab(chromium, path.as_uri(), width, scheme) as tab:
        tab.charts()
        assert tab.said == []
