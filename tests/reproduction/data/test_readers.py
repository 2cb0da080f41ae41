"""Readers on tiny files in the official formats; every expected number is known from the writer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from reproduction.data import READERS, Missing, daily_sports, load, person_activity, sc_ma, shl
from reproduction.data.federation import Federation
from tests.reproduction.data import files


def check_shape(made: Federation) -> None:
    """What holds for every federation."""
    assert made.layers == (made.inputs, *made.hidden, len(made.classes))
    everything = torch.cat([site["train"][0] for site in made.sites.values()])
    for site in made.sites.values():
        for inputs, targets in site.values():
            assert inputs.dtype == torch.float32
            assert targets.dtype == torch.int64
            assert inputs.shape == (len(targets), made.inputs)
            assert torch.isfinite(inputs).all()
            assert 0 <= int(targets.min()) <= int(targets.max()) < len(made.classes)
    assert made.raw or everything.mean(dim=0)[:3].abs().max() < 1e-4


@pytest.mark.parametrize("ending", ["", ".gz", ".xz"])
def test_fashion_mnist(tmp_path: Path, ending: str) -> None:
    written = files.fashion_mnist(tmp_path, ending)
    raw = load("fashion-mnist", tmp_path, raw=True)
    assert list(raw.sites) == ["T-shirt/top", "pullover", "shirt"]
    for j, (site, label) in enumerate(zip(raw.sites.values(), (0, 2, 6), strict=True)):
        for part, prefix in (("train", "train"), ("test", "t10k")):
            inputs, targets = site[part]
            own = written[f"{prefix}-labels"] == label
            expected = written[f"{prefix}-images"][own].reshape(-1, 4) / 255.0
            np.testing.assert_allclose(inputs.numpy(), expected, atol=1e-7)
            assert targets.tolist() == [j] * len(expected)
    check_shape(raw)


def test_fashion_mnist_is_standardised_by_its_training_part_with_a_floor(tmp_path: Path) -> None:
    files.fashion_mnist(tmp_path)
    raw, made = load("fashion-mnist", tmp_path, raw=True), load("fashion-mnist", tmp_path)
    check_shape(made)
    together = torch.cat([site["train"][0] for site in raw.sites.values()]).double()
    std = together.std(dim=0, correction=0)
    assert float(std[0]) < 1e-7  # the pixel that never changes
    expected = torch.maximum(std, 0.1 * std.mean())
    torch.testing.assert_close(made.standard.std.double(), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(made.standard.mean.double(), together.mean(dim=0), rtol=1e-6, atol=0)
    for name in raw.sites:  # a raw image, transformed, is the loaded one to the bit
        for part in ("train", "test"):
            again = raw.standard.apply(raw.sites[name][part][0])
            assert torch.equal(again, made.sites[name][part][0])


def test_fashion_mnist_has_one_protocol(tmp_path: Path) -> None:
    files.fashion_mnist(tmp_path)
    with pytest.raises(ValueError, match="protocol='by-sequence': expected 'paper'"):
        load("fashion-mnist", tmp_path, protocol="by-sequence")
    with pytest.raises(ValueError, match="seed=-1"):
        load("fashion-mnist", tmp_path, seed=-1)


@pytest.mark.parametrize("write", [files.person_official, files.person_short])
def test_person_activity(tmp_path: Path, write: object) -> None:
    write(tmp_path)  # type: ignore[operator]
    made = load("person-activity", tmp_path, raw=True, protocol="by-sequence")
    check_shape(made)
    rows = files.person_rows()
    for name, site in made.sites.items():
        for part, wanted in (("train", "12"), ("test", "3")):
            own = [r for r in rows if r[0][0] == name[-1] and r[0][2] in wanted]
            inputs, targets = site[part]
            expected = np.array([[float(v) for v in r[2:5]] for r in own])
            np.testing.assert_allclose(inputs[:, :3].numpy(), expected, atol=1e-6)
            tags = [list(person_activity.TAGS)[int(i)] for i in inputs[:, 3:].argmax(dim=1)]
            assert tags == [r[1] for r in own]
            assert (inputs[:, 3:].sum(dim=1) == 1).all()
            assert [made.classes[int(t)] for t in targets] == [r[5] for r in own]


def test_the_one_hot_columns_are_left_alone(tmp_path: Path) -> None:
    files.person_official(tmp_path)
    made = load("person-activity", tmp_path)
    check_shape(made)
    together = torch.cat([site["train"][0] for site in made.sites.values()])
    torch.testing.assert_close(together[:, :3].std(dim=0, correction=0), torch.ones(3))
    assert set(together[:, 3:].unique().tolist()) == {0.0, 1.0}
    assert made.layers == (7, 64, 32, 16, 11)


def test_the_random_split_is_a_fifth_of_every_site_and_the_seeds_own(tmp_path: Path) -> None:
    files.person_official(tmp_path)
    made = load("person-activity", tmp_path, raw=True, seed=3)
    assert set(made.counts().values()) == {(24, 6)}
    rows = files.person_rows()
    for name, site in made.sites.items():
        both = torch.cat([site["train"][0], site["test"][0]])[:, :3]
        own = sorted([float(v) for v in r[2:5]] for r in rows if r[0][0] == name[-1])
        np.testing.assert_allclose(sorted(both.tolist()), own, atol=1e-6)
    again, other = (load("person-activity", tmp_path, raw=True, seed=s) for s in (3, 4))
    tests = [run.sites["person A"]["test"][0] for run in (made, again, other)]
    assert torch.equal(tests[0], tests[1])
    assert not torch.equal(tests[0], tests[2])


@pytest.mark.parametrize("ending", ["", ".xz"])
def test_sc_ma(tmp_path: Path, ending: str) -> None:
    files.sc_ma(tmp_path, ending)
    made = load("sc-ma", tmp_path, raw=True, protocol="by-sequence")
    check_shape(made)
    assert len(made.sites) == 15
    # Of 10, 5, 10, 4 and 5 rows in a stretch the last 2, 1, 2, 1 and 1; rows without one left out.
    late = [8, 9, 17, 26, 27, 31, 36]
    early = [i for i, y in enumerate(files.SC_MA_LABELS) if y and i not in late]
    for person, site in enumerate(made.sites.values(), start=1):
        for part, index in (("train", early), ("test", late)):
            inputs, targets = site[part]
            assert inputs.tolist() == [[2000 + person, i, 3 * i] for i in index]
            assert targets.tolist() == [files.SC_MA_LABELS[i] - 1 for i in index]
    made = load("sc-ma", tmp_path)
    check_shape(made)
    assert set(made.counts().values()) == {(27, 7)}
    assert made.layers == (3, 32, 16, 7)


@pytest.fixture
def one_person(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daily_sports, "PEOPLE", (1,))


@pytest.mark.usefixtures("one_person")
@pytest.mark.parametrize("packed", [False, True])
def test_daily_sports(tmp_path: Path, packed: bool) -> None:
    files.daily_sports_files(tmp_path, packed=packed)
    arrays = daily_sports.read(daily_sports.files(tmp_path / "daily_sports_activities"))
    assert arrays["x"].shape == (8 * 20 * 125 * 5, 9)
    third = arrays["x"].reshape(-1, 125, 5, 9)[2]  # a01/p1/s09
    expected = np.arange(125 * 45).reshape(125, 5, 9) / 8.0
    expected[:, 0, 0] = 1109
    np.testing.assert_allclose(third, expected, rtol=1e-5)  # six digits are in the file
    assert arrays["y"].reshape(8, -1).tolist() == [[j] * (arrays["y"].size // 8) for j in range(8)]
    assert arrays["site"][:7].tolist() == [0, 1, 2, 3, 4, 0, 1]
    late = arrays["late"].reshape(8, 20, -1)
    assert late.all(axis=2).sum() == late.any(axis=2).sum() == 8 * 4
    assert late[:, 16:].all()


@pytest.mark.usefixtures("one_person")
def test_daily_sports_sites_mix_placements_in_the_stated_shares(tmp_path: Path) -> None:
    files.daily_sports_files(tmp_path, packed=True)
    for protocol in ("paper", "by-sequence"):
        made = load("daily-sports", tmp_path, raw=True, protocol=protocol)
        check_shape(made)
        each = 8 * 20 * 125
        for site, row in zip(made.sites.values(), daily_sports.SHARES, strict=True):
            for part, share in (("train", 0.8), ("test", 0.2)):
                column = site[part][0][:, 1] * 8 % 45  # tells the placement
                placement = ((column - 1) / 9).round()
                counts = torch.stack([(placement == g).sum() for g in range(5)])
                expected = torch.tensor(row) * each * share
                slack = 2 if protocol == "by-sequence" else 6 * float(expected.sum()) ** 0.5
                assert (counts - expected).abs().max() <= slack
    assert made.layers == (9, 96, 48, 24, 8)
    assert "Not SHL" in made.notes


DAYS = {"User1": ["220617", "010717", "260617"], "User2": ["140617", "150617"]}


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_shl(tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shl, "EVERY", 10)
    files.shl_files(tmp_path, DAYS, ending=ending)
    arrays = shl.read(shl.files(tmp_path / "shl"))
    # Of rows 0, 10, ..., 390 the first five have no label, and row 60 has no accelerometer.
    kept = [i for i in range(0, 400, 10) if i // 50 % 9 and i != 60]
    assert arrays["x"].shape == (5 * 4 * len(kept), 9)
    days = arrays["x"].reshape(5, 4, len(kept), 9)
    for p in range(4):
        expected = 100 * p + np.arange(9) + 0.001 * np.array(kept)[:, None]
        for day in days[:, p]:
            np.testing.assert_allclose(day, expected, atol=1e-4)
    assert arrays["y"][: len(kept)].tolist() == [i // 50 % 9 - 1 for i in kept]
    assert arrays["site"].reshape(5, 4, -1)[0].tolist() == [[p] * len(kept) for p in range(4)]
    # In order of the folders' names; 1 July comes after 26 June.
    assert arrays["late"].reshape(5, -1).all(axis=1).tolist() == [True, False, False, False, True]


@pytest.mark.parametrize("protocol", ["paper", "by-sequence"])
def test_shl_sites(tmp_path: Path, protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shl, "EVERY", 2)
    files.shl_files(tmp_path, DAYS)
    made = load("shl", tmp_path, protocol=protocol, raw=True)
    check_shape(made)
    assert len(made.sites) == 6
    assert made.layers == (9, 96, 48, 24, 8)
    first = made.sites["site 1"]["train"][0][:, 1]
    assert ((first < 100).float().mean() > 0.7).item()  # mostly hand: .55 against .15


def test_a_row_long_after_the_last_label_has_none(tmp_path: Path) -> None:
    files.shl_files(tmp_path, {"User1": ["220617"]}, rows=300)
    folder = tmp_path / "shl" / "release" / "User1" / "220617"
    lines = (folder / "Label.txt").read_text().splitlines(keepends=True)
    (folder / "Label.txt").write_text("".join(lines[:101]))
    arrays = shl.read(shl.files(tmp_path / "shl"))
    assert arrays["y"].tolist() == [1, 1] * 4  # of the rows 0, 100 and 200 the last two


@pytest.mark.parametrize("name", READERS)
def test_missing_data_names_the_command(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Missing) as caught:
        load(name, tmp_path)
    assert str(caught.value).endswith(f"Get it with: aspire data fetch {name} --data {tmp_path}")
    monkeypatch.setenv("ASPIRE_DATA", str(tmp_path / "none"))
    with pytest.raises(Missing, match=f"none/.*aspire data fetch {name}$"):
        load(name)


def test_a_name_that_is_none() -> None:
    with pytest.raises(ValueError, match="name='mnist': expected one of fashion-mnist, person"):
        load("mnist")


def test_bad_files_are_named(tmp_path: Path) -> None:
    files.put(tmp_path, "x", b"\x00\x00\x08\x01\x00\x00\x00\x05abc")
    with pytest.raises(ValueError, match="x: 3 values: expected 5"):
        READERS["fashion-mnist"].read([tmp_path / "x"] * 4)
    files.put(tmp_path, "1.csv", b"0,1,2,3,9\n")
    with pytest.raises(ValueError, match=r"1\.csv: expected labels from 0 to 7"):
        sc_ma.read([tmp_path / "1.csv"])
    files.put(tmp_path, "1.csv", b"0,1,x,3,1\n")
    with pytest.raises(ValueError, match=r"1\.csv: could not convert string 'x'"):
        sc_ma.read([tmp_path / "1.csv"])
    files.put(tmp_path, "all_xyz.csv", b"head\nA01,010-000-024-033,1,2,3,flying\n")
    with pytest.raises(ValueError, match=r"all_xyz\.csv: 'flying': expected one of"):
        person_activity.read([tmp_path / "all_xyz.csv"])
    files.put(tmp_path, "all_xyz.csv", b"head\nA01,1,2,3\n")
    with pytest.raises(ValueError, match="has 4 columns: expected 6"):
        person_activity.read([tmp_path / "all_xyz.csv"])


def test_held_out_takes_a_tenth_of_the_training_part(tmp_path: Path) -> None:
    files.sc_ma(tmp_path)
    made = load("sc-ma", tmp_path, raw=True)
    held = made.held_out(0.25, seed=1)
    assert all(site.keys() == {"train", "val"} for site in held.without_test().sites.values())
    for name, site in held.sites.items():
        assert (len(site["train"][1]), len(site["val"][1])) == (20, 7)
        assert site["test"] == made.sites[name]["test"]
        both = torch.cat([site["train"][0], site["val"][0]]).tolist()
        assert sorted(both) == sorted(made.sites[name]["train"][0].tolist())
