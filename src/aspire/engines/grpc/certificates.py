"""X.509: certificates of a federation's CA, its server and its sites, and their keys."""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
from dataclasses import dataclass
from pathlib import Path

try:
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    raise ImportError(
        "a federation needs cryptography, grpcio and protobuf: "
        "pip install 'aspire-ease[federation]'"
    ) from None

CLOCKS = datetime.timedelta(minutes=10)  # how far two machines' clocks may be apart
SOON = datetime.timedelta(days=14)  # before a certificate expires, when its owner is told


@dataclass(frozen=True)
class Signer:
    """A CA in use."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


# ---------------------------------------------------------------- making


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def own_certificate(key: ec.EllipticCurvePrivateKey, days: int) -> Signer:
    """A CA: its key, and the certificate that it gives itself."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ASPIRE federation")])
    usage = _usage(sign_certificates=True)
    certificate = (
        _builder(name, name, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    return Signer(key, certificate)


def issued(
    signer: Signer,
    key: ec.EllipticCurvePublicKey,
    name: str,
    days: int,
    hosts: x509.SubjectAlternativeName | None = None,
) -> x509.Certificate:
    """The certificate of a key: of the server where `hosts` says under which names, or a site's."""
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
        builder = builder.add_extension(hosts, critical=False)
    return builder.sign(signer.key, hashes.SHA256())


def host_names(hosts: list[str]) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([_host(host) for host in hosts])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def pem_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
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


# ---------------------------------------------------------------- reading


def private_key(path: Path, text: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(text, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{path}: expected a private key of aspire federation in PEM")
    return key


def certificate_of(text: bytes, path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(text)
    except ValueError:
        raise ValueError(f"{path}: expected a certificate in PEM") from None


def valid(text: bytes, path: Path) -> x509.Certificate:
    """A certificate that has not expired."""
    certificate = certificate_of(text, path)
    end = certificate.not_valid_after_utc
    if end < datetime.datetime.now(datetime.UTC):
        raise ValueError(f"{path} has expired on {end:%Y-%m-%d}")
    return certificate


def expires_soon(certificate: x509.Certificate) -> bool:
    return certificate.not_valid_after_utc < datetime.datetime.now(datetime.UTC) + SOON


def fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """SHA-256 of a public key, by which two people compare it."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    encoded = key.public_bytes(serialization.Encoding.DER, form)
    return hashlib.sha256(encoded).hexdigest()


def common_name(named: x509.Certificate | x509.CertificateSigningRequest) -> str:
    """Of the subject; empty where it has none."""
    names = named.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


def is_of_server(certificate: x509.Certificate) -> bool:
    """And not of a site."""
    uses = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    return ExtendedKeyUsageOID.SERVER_AUTH in uses
