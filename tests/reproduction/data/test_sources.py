"""The table of homes, the other checks of `verify`, and `aspire data list`."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from aspire.cli import main
from reproduction.commands.data import DownloadBar
from reproduction.data import READERS, daily_sports
from reproduction.data.files import cache_folder, data_folder
from reproduction.data.sources import SOURCES, Sum
from reproduction.data.verify import verify
from tests.reproduction.data import files

HOMES = {
    "fashion-mnist": "raw.githubusercontent.com",
    "person-activity": "archive.ics.uci.edu",
    "sc-ma": "archive.ics.uci.edu",
    "daily-sports": "archive.ics.uci.edu",
    "shl": "www.shl-dataset.org",
}


def test_every_reader_has_a_home() -> None:
    assert list(SOURCES) == list(READERS) == list(HOMES)
    for name, source in SOURCES.items():
        for remote in source.remotes:
            assert {urlsplit(url).hostname for url in remote.urls} == {HOMES[name]}
            assert all(url.isascii() and " " not in url for url in remote.urls)
            assert remote.name == Path(remote.name).name


@pytest.mark.parametrize(
    ("name", "member", "goes_to"),
    [
        ("person-activity", "x/ConfLongDemo_JSI.txt", "ConfLongDemo_JSI.txt"),
        ("sc-ma", "Activity Recognition/12.csv", "12.csv"),
        ("sc-ma", "__MACOSX/._12.csv", None),
        ("daily-sports", "data/a01/p1/s03.txt", "a01/p1/s03.txt"),
        ("daily-sports", "data/a03/p1/s03.txt", None),
        ("daily-sports", "data/a01/p1/s04.txt", None),
        ("shl", "v1/User1/220617/Hips_Motion.txt", "User1/220617/Hips_Motion.txt"),
        ("shl", "v1/User1/220617/Label.txt", "User1/220617/Label.txt"),
        ("shl", "v1/User1/220617/Hips_GPS.txt", None),
    ],
)
def test_what_is_kept_of_an_archive(name: str, member: str, goes_to: str | None) -> None:
    match = re.search(SOURCES[name].remotes[0].wanted or "", member)
    assert (match and match[1]) == goes_to


def test_every_segment_that_is_read_is_kept() -> None:
    pattern = re.compile(SOURCES["daily-sports"].remotes[0].wanted or "")
    for activity in daily_sports.ACTIVITIES:
        assert all(pattern.search(name) for name in daily_sports.members(activity))


@pytest.mark.parametrize("packed", [True, False])
def test_verify_daily_sports(tmp_path: Path, packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daily_sports, "PEOPLE", (1,))
    monkeypatch.setattr(daily_sports, "SEGMENTS", (3, 60))
    files.daily_sports_files(tmp_path, packed=packed)
    sums = {
        activity: Sum("sha256", hashlib.sha256(b"".join(parts)).hexdigest(), text=True)
        for activity in daily_sports.ACTIVITIES
        for parts in [[files.segment(name) for name in daily_sports.members(activity)]]
    }
    monkeypatch.setitem(SOURCES, "daily-sports", replace(SOURCES["daily-sports"], contents=sums))
    folder = tmp_path / "daily_sports_activities"
    checks = verify(READERS["daily-sports"], folder)
    assert [(check.what, check.right) for check in checks] == [(a, True) for a in sums]
    if packed:
        (folder / "a07.tar.xz").write_bytes((folder / "a08.tar.xz").read_bytes()[:-40])
    else:
        path = folder / "a07" / "p1" / "s60.txt"
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))  # line ends do not count
        assert all(check.right for check in verify(READERS["daily-sports"], folder))
        path.write_bytes(b"1,2,3\n")
    wrong = [check for check in verify(READERS["daily-sports"], folder) if not check.right]
    assert len(wrong) == 1


def test_verify_shl_looks_at_the_format(tmp_path: Path) -> None:
    files.shl_files(tmp_path, {"User1": ["220617"]}, rows=20)
    assert [c.right for c in verify(READERS["shl"], tmp_path / "shl")] == [True] * 5
    path = tmp_path / "shl" / "release" / "User1" / "220617" / "Bag_Motion.txt"
    path.write_text("1498120000000 1 2 3\n")
    (wrong,) = [c for c in verify(READERS["shl"], tmp_path / "shl") if not c.right]
    assert wrong.what == "User1/220617/Bag_Motion.txt"


def test_list_says_what_is_here(tmp_path: Path) -> None:
    files.person_short(tmp_path)
    result = CliRunner().invoke(main, ["data", "list", "--data", str(tmp_path)])
    assert result.exit_code == 0
    here = {line.split()[0]: line.split()[1] for line in result.output.splitlines() if "MB" in line}
    assert here == {name: "yes" if name == "person-activity" else "no" for name in READERS}


def test_a_bad_name_is_a_sentence() -> None:
    for command in ("fetch", "verify"):
        result = CliRunner().invoke(main, ["data", command, "nothing"])
        assert result.exit_code == 2
        assert "expected one of fashion-mnist" in result.output


def test_where_things_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASPIRE_DATA", raising=False)
    assert data_folder(tmp_path) == tmp_path
    assert data_folder(None) == cache_folder() / "data"
    monkeypatch.setenv("ASPIRE_DATA", str(tmp_path / "here"))
    assert data_folder(None) == tmp_path / "here"
    monkeypatch.delenv("ASPIRE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "aspire"


@pytest.mark.parametrize("bar", [True, False])
def test_the_line_of_a_download(bar: bool, capsys: pytest.CaptureFixture[str]) -> None:
    line = DownloadBar()
    line.bar = bar
    for done in range(0, 1_000_001, 1000):
        line("x.zip", done, 1_000_000)
    for done in (0, 4_000_000, 20_000_000):
        line("y.zip", done, None)
    shown = capsys.readouterr().err
    assert "x.zip: " in shown
    assert "1.0 of 1.0 MB" in shown
    assert shown.count("x.zip") == (51 if bar else 11)
    assert shown.count("y.zip") == 2
    assert ("[####################]" in shown) == bar
