"""Fetching from a server on this machine: resumed, checked, and never half."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from aspire.cli import main
from reproduction.data import READERS, load
from reproduction.data.download import CHUNK, download, extract
from reproduction.data.fetch import fetch
from reproduction.data.sources import SOURCES, Remote, Source, Sum
from tests.reproduction.data import files
from tests.reproduction.data.server import Site, serve

BIG = bytes(range(256)) * (3 * CHUNK // 256) + b"the end"


def quiet(*_: object) -> None:
    pass


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("no_proxy", "*")
    with serve(Site({"/big": BIG})) as running:
        yield running


def remote(site: Site, *paths: str, check: Sum | None = None) -> Remote:
    return Remote("big", tuple(site.url + path for path in paths or ("/big",)), check)


def right(content: bytes) -> Sum:
    return Sum("sha256", hashlib.sha256(content).hexdigest(), len(content))


def zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@pytest.mark.parametrize("sized", [True, False])
def test_a_file_with_progress(site: Site, tmp_path: Path, sized: bool) -> None:
    site.sized = sized
    seen: list[tuple[str, int, int | None]] = []
    download(remote(site), tmp_path / "new" / "big", lambda *x: seen.append(x))
    assert (tmp_path / "new" / "big").read_bytes() == BIG
    total = len(BIG) if sized else None
    assert seen[0] == ("big", 0, total)
    assert seen[-1] == ("big", len(BIG), total)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


@pytest.mark.parametrize("sized", [True, False])
def test_a_connection_that_ends_early_is_taken_up_again(
    site: Site, tmp_path: Path, sized: bool
) -> None:
    site.sized, site.hang_up = sized, [CHUNK + 5, CHUNK]
    download(remote(site, check=right(BIG)), tmp_path / "big", quiet)
    assert (tmp_path / "big").read_bytes() == BIG
    ranges = [wanted for _, wanted in site.log]
    assert ranges[0] is None
    assert len(ranges) == 3
    assert all(wanted is not None for wanted in ranges[1:])


def test_when_it_keeps_ending_the_next_command_continues(site: Site, tmp_path: Path) -> None:
    site.hang_up = [1000, 2000, 3000]
    with pytest.raises(ValueError, match="6000 bytes are here; the same command goes on"):
        download(remote(site), tmp_path / "big", quiet)
    assert [path.name for path in tmp_path.iterdir()] == ["big.part"]
    download(remote(site), tmp_path / "big", quiet)
    assert site.log[-1] == ("/big", "bytes=6000-")
    assert (tmp_path / "big").read_bytes() == BIG
    assert [path.name for path in tmp_path.iterdir()] == ["big"]


def test_an_interrupt_keeps_the_part(site: Site, tmp_path: Path) -> None:
    def interrupt(_: str, done: int, __: int | None) -> None:
        if done > CHUNK:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(remote(site), tmp_path / "big", interrupt)
    assert not (tmp_path / "big").exists()
    kept = (tmp_path / "big.part").stat().st_size
    assert kept > 0
    download(remote(site), tmp_path / "big", quiet)
    assert site.log[-1] == ("/big", f"bytes={kept}-")
    assert (tmp_path / "big").read_bytes() == BIG


def test_a_server_without_ranges_starts_over(site: Site, tmp_path: Path) -> None:
    site.ranges = False
    (tmp_path / "big.part").write_bytes(b"something else")
    download(remote(site), tmp_path / "big", quiet)
    assert (tmp_path / "big").read_bytes() == BIG


def test_a_part_that_was_complete_is_not_asked_for_again(site: Site, tmp_path: Path) -> None:
    (tmp_path / "big.part").write_bytes(BIG)
    download(remote(site, check=right(BIG)), tmp_path / "big", quiet)
    assert site.log == []
    (tmp_path / "again.part").write_bytes(BIG)  # without a known size the server says so
    download(remote(site), tmp_path / "again", quiet)
    assert (tmp_path / "again").read_bytes() == BIG
    (tmp_path / "long.part").write_bytes(BIG + b"more")
    download(remote(site), tmp_path / "long", quiet)
    assert (tmp_path / "long").read_bytes() == BIG


@pytest.mark.parametrize(
    ("check", "sentence"),
    [
        (Sum("sha256", "0" * 64), "sha256 .*: expected 0000"),
        (Sum("md5", "0" * 32), "md5 .*: expected 0000"),
        (replace(right(BIG), size=5), f"{len(BIG)} bytes: expected 5"),
    ],
)
def test_a_wrong_file_is_deleted(site: Site, tmp_path: Path, check: Sum, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"wrong file, which is deleted: {sentence}"):
        download(remote(site, check=check), tmp_path / "big", quiet)
    assert list(tmp_path.iterdir()) == []


def test_the_second_address_is_tried(site: Site, tmp_path: Path) -> None:
    download(remote(site, "/gone", "/big"), tmp_path / "big", quiet)
    assert (tmp_path / "big").read_bytes() == BIG
    with pytest.raises(ValueError, match="other is not found at http"):
        download(replace(remote(site, "/gone"), name="other"), tmp_path / "other", quiet)


@pytest.mark.parametrize(
    "name", ["../1.csv", "a/../../1.csv", "/1.csv", "C:/1.csv", "..\\1.csv", "c:\\1.csv"]
)
def test_an_archive_that_points_out_of_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "x.zip").write_bytes(zipped({"2.csv": b"fine", name: b"not"}))
    with pytest.raises(ValueError, match="refused, for its member"):
        extract(tmp_path / "x.zip", r"(?:^|/)(\d+\.csv)$", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["x.zip"]


def test_what_is_wanted_of_an_archive_and_of_one_inside(tmp_path: Path) -> None:
    inner = zipped({"deep/2.csv": b"two", "deep/readme": b""})
    (tmp_path / "x.zip").write_bytes(
        zipped({"top/1.csv": b"one", "a.zip": inner, "top/._3.csv": b"no"})
    )
    extract(tmp_path / "x.zip", r"(?:^|/)(\d+\.csv)$", tmp_path / "out")
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == {
        "1.csv": b"one",
        "2.csv": b"two",
    }


def test_a_broken_archive_is_deleted(tmp_path: Path) -> None:
    content = bytearray(zipped({"1.csv": bytes(range(256)) * 9}))
    content[60] ^= 255
    (tmp_path / "x.zip").write_bytes(content)
    with pytest.raises(ValueError, match=r"x\.zip is broken and is deleted"):
        extract(tmp_path / "x.zip", r"(\d+\.csv)$", tmp_path / "out")
    assert not (tmp_path / "x.zip").exists()


@pytest.fixture
def tiny(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """The server offers fifteen tiny files as sc-ma; the table of sources says so."""
    files.sc_ma(tmp_path / "origin")
    origin = tmp_path / "origin" / "chest_accelerometer"
    texts = {path.name: path.read_bytes() for path in origin.iterdir()}
    site.files["/sc-ma.zip"] = zipped({f"folder/{name}": text for name, text in texts.items()})
    wanted = SOURCES["sc-ma"].remotes[0].wanted
    offered = replace(
        SOURCES["sc-ma"],
        remotes=(Remote("sc-ma.zip", (f"{site.url}/sc-ma.zip",), wanted=wanted),),
        contents={name: replace(right(text), text=True) for name, text in texts.items()},
    )
    monkeypatch.setitem(SOURCES, "sc-ma", offered)
    return texts


def test_fetch_verify_and_load(tiny: dict[str, bytes], tmp_path: Path, site: Site) -> None:
    data = ["--data", str(tmp_path / "data")]
    run = CliRunner().invoke
    assert run(main, ["data", "verify", "sc-ma", *data]).exit_code == 2
    fetched = run(main, ["data", "fetch", "sc-ma", *data])
    assert fetched.exit_code == 0, fetched.output
    assert "is here now, whole and right" in fetched.output
    assert [p.name for p in (tmp_path / "data").iterdir()] == ["chest_accelerometer"]
    assert {p.name for p in (tmp_path / "data" / "chest_accelerometer").iterdir()} == set(tiny)
    checked = run(main, ["data", "verify", "sc-ma", *data])
    assert checked.exit_code == 0
    assert "sc-ma: 15 of 15 are right." in checked.output
    assert len(load("sc-ma", tmp_path / "data").sites) == 15
    again = run(main, ["data", "fetch", "sc-ma", *data])
    assert "was here already" in again.output
    assert len(site.log) == 1


def test_a_wrong_archive_leaves_nothing(tiny: dict[str, bytes], tmp_path: Path, site: Site) -> None:
    site.files["/sc-ma.zip"] = zipped(tiny | {"7.csv": b"0,1,2,3,1\n"})
    with pytest.raises(ValueError, match=r"is wrong and is deleted: 7\.csv"):
        fetch(READERS["sc-ma"], tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []
    site.files["/sc-ma.zip"] = zipped({name: tiny[name] for name in list(tiny)[1:]})
    with pytest.raises(ValueError, match="is wrong and is deleted"):
        fetch(READERS["sc-ma"], tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


def test_an_interrupt_while_unpacking_leaves_no_half_file(
    tiny: dict[str, bytes], tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("reproduction.data.download.shutil.copyfileobj", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetch(READERS["sc-ma"], tmp_path / "data")
    assert not (tmp_path / "data" / "chest_accelerometer").exists()
    assert fetch(READERS["sc-ma"], tmp_path / "data")
    assert len(site.log) == 1  # the archive was whole and is not downloaded twice


def test_a_damaged_file_is_noticed_and_fetched_again(
    tiny: dict[str, bytes], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    fetch(READERS["sc-ma"], data)
    path = data / "chest_accelerometer" / "4.csv"
    path.write_bytes(b"0,1,2,3,1\n")
    checked = CliRunner().invoke(main, ["data", "verify", "sc-ma", "--data", str(data)])
    assert checked.exit_code == 2
    assert "WRONG  4.csv: 10 bytes" in checked.output
    assert "1 of 15 files of sc-ma are wrong" in checked.output
    assert fetch(READERS["sc-ma"], data)
    assert path.read_bytes() == tiny["4.csv"]


def test_files_that_are_right_are_not_downloaded_again(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.fashion_mnist(tmp_path / "origin", ".gz")
    origin = {p.name: p for p in (tmp_path / "origin" / "fashion_mnist").iterdir()}
    site.files |= {f"/{name}": path.read_bytes() for name, path in origin.items()}
    plain = {path.stem: files.gzip.decompress(path.read_bytes()) for path in origin.values()}
    offered: Source = replace(
        SOURCES["fashion-mnist"],
        remotes=tuple(
            Remote(name, (f"{site.url}/{name}",), right(path.read_bytes()))
            for name, path in origin.items()
        ),
        contents={name: right(content) for name, content in plain.items()},
    )
    monkeypatch.setitem(SOURCES, "fashion-mnist", offered)
    assert fetch(READERS["fashion-mnist"], tmp_path / "data")
    name = "train-images-idx3-ubyte.gz"
    (tmp_path / "data" / "fashion_mnist" / name).unlink()
    site.log.clear()
    assert fetch(READERS["fashion-mnist"], tmp_path / "data")
    assert site.log == [(f"/{name}", None)]


def test_a_folder_that_cannot_be_written_is_a_sentence(
    tiny: dict[str, bytes], tmp_path: Path
) -> None:
    files.put(tmp_path, "file", b"")
    with pytest.raises(ValueError, match="expected a folder that can be written to"):
        fetch(READERS["sc-ma"], tmp_path / "file" / "data")
