"""Keys and certificates: who may read them, what they say, what is refused."""

import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("cryptography", reason="needs aspire-ease[federation]")
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from aspire.cli import main
from aspire.engines.grpc import kits


def aspire(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, arguments)
    return result.exit_code, result.output


@pytest.fixture
def made(tmp_path: Path) -> Path:
    code, output = aspire("federation", "init", str(tmp_path / "f"), "--sites", "a,b,site c")
    assert code == 0, output
    return tmp_path / "f"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_keys_are_for_their_owner_only(made: Path) -> None:
    found = sorted(made.rglob("key.pem"))
    assert len(found) == 5  # the CA, the server, three sites
    assert {mode(key) for key in found} == {0o600}
    assert {mode(folder) for folder in [made, *made.rglob("*")] if folder.is_dir()} == {0o700}


def test_the_two_commands_are_printed(tmp_path: Path) -> None:
    code, output = aspire(
        "federation", "init", str(tmp_path / "f"), "--sites", "a", "--server", "train.example.org"
    )
    assert code == 0
    assert f"aspire server FILE.py --kit {tmp_path / 'f' / 'server'} --listen" in output
    connect = "--connect train.example.org:8443"
    assert f"aspire site FILE.py --kit {tmp_path / 'f' / 'sites' / 'a'} {connect}" in output


def test_a_certificate_says_who_and_what_for(made: Path) -> None:
    kit = kits.read(made / "sites" / "site c")
    assert kit.name == "site c"
    site, server = (
        x509.load_pem_x509_certificate(x)
        for x in (kit.certificate, kits.read(made / "server").certificate)
    )
    uses = [
        c.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value for c in (site, server)
    ]
    assert list(uses[0]) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert list(uses[1]) == [ExtendedKeyUsageOID.SERVER_AUTH]
    hosts = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert hosts.get_values_for_type(x509.DNSName) == ["localhost"]
    assert [str(a) for a in hosts.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    ca = x509.load_pem_x509_certificate(kit.ca)
    site.verify_directly_issued_by(ca)
    server.verify_directly_issued_by(ca)
    assert not site.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_keys_are_never_overwritten(made: Path) -> None:
    before = (made / "ca" / "key.pem").read_bytes()
    code, output = aspire("federation", "init", str(made), "--sites", "a")
    assert code == 2
    assert "never overwritten" in output
    assert aspire("federation", "add", str(made), "a")[0] == 2
    assert (made / "ca" / "key.pem").read_bytes() == before


def test_a_site_can_be_added_and_removed(made: Path) -> None:
    code, output = aspire("federation", "add", str(made), "d")
    assert code == 0, output
    assert kits.allowed(made / "server") == ["a", "b", "site c", "d"]
    assert kits.read(made / "sites" / "d").name == "d"
    assert kits.read(made / "sites" / "d").ca == kits.read(made / "server").ca
    listed = made / "server" / "sites.txt"
    listed.write_text("# since March\nb\nd # the new one\n")
    assert kits.allowed(made / "server") == ["b", "d"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--sites", "a,../b"], "site name '../b': expected"),
        (["--sites", "a,a"], "site name 'a' is there twice"),
        (["--sites", ""], "site name '': expected"),
        (["--sites", "x" * 65], "expected 1 to 64"),
        (["--sites", "a", "--server", ""], "server='': expected"),
        (["--sites", "a", "--days", "0"], "days=0: expected"),
    ],
)
def test_bad_arguments_leave_nothing_behind(
    tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    code, output = aspire("federation", "init", str(tmp_path / "f"), *arguments)
    assert code == 2
    assert sentence in output
    assert not (tmp_path / "f").exists()


def test_a_folder_that_is_no_kit_is_refused(tmp_path: Path, made: Path) -> None:
    with pytest.raises(ValueError, match=r"has no key\.pem"):
        kits.read(tmp_path)
    with pytest.raises(ValueError, match=r"has no sites\.txt: expected the kit of the server"):
        kits.allowed(made / "sites" / "a")
    (made / "sites" / "a" / "cert.pem").write_text("nothing")
    with pytest.raises(ValueError, match="expected a certificate in PEM"):
        kits.read(made / "sites" / "a")


def test_a_key_that_others_can_read_is_told(made: Path, caplog: pytest.LogCaptureFixture) -> None:
    (made / "server" / "key.pem").chmod(0o644)
    kits.read(made / "server")
    assert "can be read by others (mode 644)" in caplog.text


def test_an_expired_kit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kits, "CLOCKS", kits.datetime.timedelta(days=9))
    kits.init(tmp_path / "f", ["a"], ["localhost"], 1)
    real = kits.datetime.datetime

    class Later(real):
        @classmethod
        def now(cls, tz: object = None) -> "Later":
            return real.now(tz) + kits.datetime.timedelta(days=2)  # type: ignore[return-value]

    monkeypatch.setattr(kits.datetime, "datetime", Later)
    with pytest.raises(ValueError, match="has expired on"):
        kits.read(tmp_path / "f" / "sites" / "a")
