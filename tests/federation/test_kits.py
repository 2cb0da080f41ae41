"""Keys and certificates: who may read them, what they say, what is refused."""

import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("cryptography", reason="needs aspire-ease[federation]")
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from aspire.cli import main
from aspire.engines.grpc import certificates, kits


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


def test_a_site_makes_its_key_and_the_owner_signs(tmp_path: Path) -> None:
    owner, kit = tmp_path / "f", tmp_path / "west"
    code, output = aspire("federation", "init", str(owner), "--sites", "east", "--keys-at-sites")
    assert code == 0, output
    assert "aspire federation request NAME KIT" in output
    assert not (owner / "sites").exists()
    code, said = aspire("federation", "request", "west", str(kit))
    assert code == 0, said
    assert (mode(kit), mode(kit / "key.pem")) == (0o700, 0o600)
    sign = ("federation", "sign", str(owner), str(kit / "request.pem"))
    code, output = aspire(*sign)
    assert code == 2
    assert "is of 'west', which is not on the list of sites: expected one of east" in output
    assert aspire("federation", "add", str(owner), "west", "--keys-at-sites")[0] == 0
    code, signed = aspire(*sign)
    assert code == 0, signed
    assert said.splitlines()[-1] in signed  # both sides see the same fingerprint
    files = ["ca.pem", "cert.pem"]
    assert sorted(path.name for path in (owner / "sites" / "west").iterdir()) == files
    for name in files:
        (kit / name).write_bytes((owner / "sites" / "west" / name).read_bytes())
    assert kits.read(kit).name == "west"


def test_another_key_for_a_name_is_signed_only_on_purpose(made: Path, tmp_path: Path) -> None:
    aspire("federation", "request", "a", str(tmp_path / "kit"))
    before = (made / "sites" / "a" / "cert.pem").read_bytes()
    sign = ("federation", "sign", str(made), str(tmp_path / "kit" / "request.pem"))
    code, output = aspire(*sign)
    assert code == 2
    assert "'a' has a certificate of another key: expected that key, or --new-key" in output
    assert (made / "sites" / "a" / "cert.pem").read_bytes() == before
    assert aspire(*sign, "--new-key")[0] == 0
    with pytest.raises(ValueError, match=r"belongs to another key: expected that of key\.pem"):
        kits.read(made / "sites" / "a")  # whose key.pem is still the old one


def test_requests_that_are_none_are_refused(made: Path, tmp_path: Path) -> None:
    kit = tmp_path / "kit"
    aspire("federation", "request", "a", str(kit))
    assert "never overwritten" in aspire("federation", "request", "a", str(kit))[1]
    made_by_other = (made / "sites" / "b" / "cert.pem").read_bytes()
    for content in (b"nothing", made_by_other):
        (kit / "request.pem").write_bytes(content)
        code, output = aspire("federation", "sign", str(made), str(kit / "request.pem"))
        assert code == 2
        assert "expected a request of aspire federation request" in output


def test_renewed_certificates_are_of_the_same_keys_and_fit_the_old_ones(made: Path) -> None:
    folders = [made / "server", *(made / "sites" / name for name in ("a", "b", "site c"))]
    old = [kits.read(folder) for folder in folders]
    (made / "server" / "sites.txt").write_text("a\nsite c\n")
    code, output = aspire("federation", "renew", str(made), "--days", "500")
    assert code == 0, output
    assert "server, a, site c." in output  # b is off the list
    new = [kits.renewed(kit) for kit in old]
    assert new[2] is old[2]
    ours = [x509.load_pem_x509_certificate(kit.ca) for kit in (old[0], new[0])]
    for before, after in zip(old, new, strict=True):
        assert (before.name, before.key) == (after.name, after.key)
        one, two = (x509.load_pem_x509_certificate(kit.certificate) for kit in (before, after))
        assert (before is after) == (one == two)
        kinds = (x509.ExtendedKeyUsage, x509.SubjectAlternativeName)
        assert [_extension(one, kind) for kind in kinds] == [
            _extension(two, kind) for kind in kinds
        ]
        for ca in ours:
            one.verify_directly_issued_by(ca)
            two.verify_directly_issued_by(ca)
    for certificate in (ours[1], x509.load_pem_x509_certificate(new[0].certificate)):
        left = certificate.not_valid_after_utc - ours[0].not_valid_after_utc
        assert 134 <= left.days <= 135


def _extension(certificate: x509.Certificate, kind: type) -> object:
    found = [extension.value for extension in certificate.extensions]
    return [value for value in found if isinstance(value, kind)]


def test_half_a_renewal_changes_nothing(made: Path, caplog: pytest.LogCaptureFixture) -> None:
    kit = kits.read(made / "sites" / "a")
    for text in ("", "half a certificate", (made / "sites" / "b" / "cert.pem").read_text()):
        (made / "sites" / "a" / "cert.pem").write_text(text)
        assert kits.renewed(kit) is kit
    (made / "sites" / "a" / "cert.pem").unlink()
    assert kits.renewed(kit) is kit
    assert caplog.text.count("the certificate stays as it was") == 4


def test_a_certificate_that_expires_soon_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kits.init(tmp_path / "f", ["a"], ["localhost"], 13)
    kits.read(tmp_path / "f" / "sites" / "a")
    assert "cert.pem expires on" in caplog.text


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
    monkeypatch.setattr(certificates, "CLOCKS", certificates.datetime.timedelta(days=9))
    kits.init(tmp_path / "f", ["a"], ["localhost"], 1)
    real = certificates.datetime.datetime

    class Later(real):
        @classmethod
        def now(cls, tz: object = None) -> "Later":
            return real.now(tz) + certificates.datetime.timedelta(days=2)  # type: ignore[return-value]

    monkeypatch.setattr(certificates.datetime, "datetime", Later)
    with pytest.raises(ValueError, match="has expired on"):
        kits.read(tmp_path / "f" / "sites" / "a")
