"""Keys and certificates: a CA, the server's kit and one kit per site.

    DIR/ca/            key.pem cert.pem                     stays with who runs the federation
    DIR/server/        key.pem cert.pem ca.pem sites.txt    goes to the server
    DIR/sites/NAME/    key.pem cert.pem ca.pem              goes to that site, by a safe way
                       batch.key                            made there, and never leaves it

A site is who its certificate says (the subject's common name), and nothing else. `sites.txt` is the
allow-list: one name a line, in the order of the sites' numbers. A certificate of the server cannot
play a site, nor a site's the server: the extended key usage says which one it is.
"""

from __future__ import annotations

import datetime
import ipaddress
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    raise ImportError(
        "a federation needs cryptography, grpcio and protobuf: "
        "pip install 'aspire-ease[federation]'"
    ) from None

logger = logging.getLogger("aspire")
KEY = "key.pem"
CERT = "cert.pem"
CA = "ca.pem"
SITES = "sites.txt"
BATCHES = "batch.key"
SECRET = 32  # its bytes
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._()-]{0,63}")
CLOCKS = datetime.timedelta(minutes=10)  # how far two machines' clocks may be apart


@dataclass(frozen=True)
class Kit:
    """What one side needs to speak: its key, its certificate and the CA that it believes."""

    folder: Path
    name: str
    key: bytes
    certificate: bytes
    ca: bytes


@dataclass(frozen=True)
class Signer:
    """A CA in use."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


# ---------------------------------------------------------------- making


def init(folder: Path, sites: list[str], hosts: list[str], days: int) -> None:
    """A new federation in a new or empty folder."""
    check_names(sites)
    if not hosts or not all(hosts):
        raise ValueError(f"server={','.join(hosts)!r}: expected the server's host name or address")
    if not 1 <= days <= 36500:
        raise ValueError(f"days={days}: expected 1 to 36500")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(
            f"{folder} is not empty, and keys are never overwritten: expected a new folder"
        )
    signer = _make_ca(folder / "ca", days)
    _kit(folder / "server", signer, "server", days, hosts)
    _create(folder / "server" / SITES, "".join(f"{name}\n" for name in sites).encode(), 0o644)
    for name in sites:
        _kit(folder / "sites" / name, signer, name, days)


def add(folder: Path, name: str, days: int) -> None:
    """One more site: its kit, and its name at the end of the allow-list."""
    listed = folder / "server" / SITES
    check_names([*allowed(folder / "server"), name])
    if (folder / "sites" / name).exists():
        raise ValueError(f"{folder / 'sites' / name} exists, and keys are never overwritten")
    _kit(folder / "sites" / name, _read_ca(folder / "ca"), name, days)
    text = listed.read_text(encoding="utf-8")
    with open(listed, "a", encoding="utf-8") as file:
        file.write(("" if text.endswith("\n") or not text else "\n") + f"{name}\n")


def check_names(names: list[str]) -> None:
    """Names are folders and common names of certificates, so they are plain."""
    if not names:
        raise ValueError("sites is empty: expected at least one name")
    for name in names:
        if not NAME.fullmatch(name):
            raise ValueError(
                f"site name {name!r}: expected 1 to 64 of letters, digits, space and ._()-, "
                "with a letter or digit first"
            )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"site name {twice[0]!r} is there twice: expected different names")


def _make_ca(folder: Path, days: int) -> Signer:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ASPIRE federation")])
    usage = _usage(sign_certificates=True)
    certificate = (
        _builder(name, name, key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    _folder(folder)
    _create(folder / KEY, _pem_key(key), 0o600)
    _create(folder / CERT, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    return Signer(key, certificate)


def _kit(
    folder: Path, signer: Signer, name: str, days: int, hosts: list[str] | None = None
) -> None:
    """A key and its certificate: of the server where `hosts` says under which names."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    role = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
    issuer = signer.key.public_key()
    builder = (
        _builder(subject, signer.certificate.subject, key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([role]), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), critical=False)
    )
    if hosts:
        names = x509.SubjectAlternativeName([_host(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    certificate = builder.sign(signer.key, hashes.SHA256())
    _folder(folder)
    _create(folder / KEY, _pem_key(key), 0o600)
    _create(folder / CERT, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    _create(folder / CA, signer.certificate.public_bytes(serialization.Encoding.PEM), 0o644)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _folder(path: Path) -> None:
    for folder in (*reversed(path.parents), path):
        if not folder.exists():
            folder.mkdir(mode=0o700)


def _create(path: Path, content: bytes, mode: int) -> None:
    """A new file that was never readable for others, not even for a moment."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


# ---------------------------------------------------------------- reading


def read(folder: Path) -> Kit:
    """A kit as `init` made it."""
    found = {}
    for name in (KEY, CERT, CA):
        path = folder / name
        if not path.is_file():
            raise ValueError(
                f"kit={str(folder)!r} has no {name}: expected a kit of aspire federation"
            )
        found[name] = path.read_bytes()
    _warn_if_open(folder / KEY)
    return Kit(folder, common_name(found[CERT], folder), found[KEY], found[CERT], found[CA])


def batch_key(folder: Path) -> bytes:
    """The secret that draws a site's batches: made on first use, kept across restarts."""
    path = folder / BATCHES
    try:
        _create(path, os.urandom(SECRET), 0o600)
    except FileExistsError:
        pass
    except OSError as error:
        raise ValueError(f"kit={str(folder)!r}: cannot make {BATCHES} in it ({error})") from None
    try:
        key = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: expected a readable file ({error})") from None
    if len(key) != SECRET:
        raise ValueError(f"{path} has {len(key)} bytes: expected {SECRET}; remove it for a new one")
    _warn_if_open(path)
    return key


def _warn_if_open(path: Path) -> None:
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        logger.warning("%s can be read by others (mode %o): expected 600", path, mode)


def common_name(certificate: bytes, where: Path) -> str:
    try:
        parsed = x509.load_pem_x509_certificate(certificate)
    except ValueError:
        raise ValueError(f"{where / CERT}: expected a certificate in PEM") from None
    if parsed.not_valid_after_utc < datetime.datetime.now(datetime.UTC):
        raise ValueError(f"{where / CERT} has expired on {parsed.not_valid_after_utc:%Y-%m-%d}")
    return str(parsed.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def allowed(server: Path) -> list[str]:
    """The names in the server kit's list; what follows a # is a remark."""
    path = server / SITES
    if not path.is_file():
        raise ValueError(f"kit={str(server)!r} has no {SITES}: expected the kit of the server")
    lines = path.read_text(encoding="utf-8").splitlines()
    names = [name for line in lines if (name := line.partition("#")[0].strip())]
    check_names(names)
    return names


def _read_ca(folder: Path) -> Signer:
    if not (folder / KEY).is_file():
        raise ValueError(f"{folder} has no {KEY}: expected the CA that aspire federation init made")
    key = serialization.load_pem_private_key((folder / KEY).read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return Signer(key, x509.load_pem_x509_certificate((folder / CERT).read_bytes()))
