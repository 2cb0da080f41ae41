"""Keys that sites make themselves, and certificates that take the place of older ones.

    request   at the site: key.pem, which never leaves it, and request.pem, which is no secret
    sign      at the owner: DIR/sites/NAME/ with cert.pem and ca.pem, which go to the site's kit
    renew     at the owner: cert.pem and ca.pem of all kits anew, for the same keys

Who asks for a name is settled between people: both sides compare the key's fingerprint. The CA
keeps its key, too, so an old certificate and a new ca.pem go together, and the other way round.
"""

from __future__ import annotations

from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from aspire.engines.grpc import certificates, kits
from aspire.engines.grpc.certificates import Signer
from aspire.runs.files import whole

REQUEST = "request.pem"


def request(kit: Path, name: str) -> str:
    """A key and a certificate request in the folder `kit`; the key's fingerprint."""
    kits.check_names([name])
    for file in (kits.KEY, REQUEST):
        if (kit / file).exists():
            raise ValueError(f"{kit / file} exists, and keys are never overwritten")
    key = certificates.new_key()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    kits.make_folder(kit)
    kits.create(kit / kits.KEY, certificates.pem_key(key), 0o600)
    kits.create(kit / REQUEST, made.public_bytes(serialization.Encoding.PEM), 0o644)
    return certificates.fingerprint(key.public_key())


def sign(folder: Path, request: Path, days: int, *, new_key: bool = False) -> tuple[str, str]:
    """The certificate of a request, for a name on the list; that name and the key's fingerprint.

    new_key  the name may have a certificate of another key, which stays valid until it expires
    """
    kits.check_days(days)
    name, key = _asked(request)
    listed = kits.allowed(folder / "server")
    if name not in listed:
        raise ValueError(
            f"{request} is of {name!r}, which is not on the list of sites: expected one of "
            f"{', '.join(listed)}, or aspire federation add --keys-at-sites before"
        )
    kit = folder / "sites" / name
    if (kit / kits.CERT).exists() and not new_key and _certificate(kit).public_key() != key:
        raise ValueError(
            f"{request}: {name!r} has a certificate of another key: expected that key, or "
            "--new-key if the site has asked for it"
        )
    signer = kits.read_ca(folder / "ca")
    kits.make_folder(kit)
    _put(kit, signer, certificates.issued(signer, key, name, days))
    return name, certificates.fingerprint(key)


def renew(folder: Path, days: int) -> list[Path]:
    """New certificates of the CA, the server and the sites on the list that have one; whose."""
    kits.check_days(days)
    sites = [folder / "sites" / name for name in kits.allowed(folder / "server")]
    have = [folder / "server", *(kit for kit in sites if (kit / kits.CERT).exists())]
    old = [_certificate(kit) for kit in have]  # all can be read, or nothing is changed
    signer = certificates.own_certificate(kits.read_ca(folder / "ca").key, days)
    new = [_again(signer, certificate, days) for certificate in old]
    _replace(folder / "ca" / kits.CERT, signer.certificate)
    for kit, certificate in zip(have, new, strict=True):
        _put(kit, signer, certificate)
    return have


def _asked(path: Path) -> tuple[str, ec.EllipticCurvePublicKey]:
    """The name and the key of a request by who has that key."""
    try:
        found = x509.load_pem_x509_csr(path.read_bytes())
        key = found.public_key()
        if not found.is_signature_valid:
            raise InvalidSignature
    except (OSError, ValueError, InvalidSignature):
        raise ValueError(f"{path}: expected a request of aspire federation request") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError(f"{path}: expected a key of EC P-256")
    return certificates.common_name(found), key


def _certificate(kit: Path) -> x509.Certificate:
    return certificates.certificate_of((kit / kits.CERT).read_bytes(), kit / kits.CERT)


def _again(signer: Signer, old: x509.Certificate, days: int) -> x509.Certificate:
    key = old.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    hosts = None
    if certificates.is_of_server(old):
        hosts = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return certificates.issued(signer, key, certificates.common_name(old), days, hosts)


def _put(kit: Path, signer: Signer, certificate: x509.Certificate) -> None:
    _replace(kit / kits.CA, signer.certificate)
    _replace(kit / kits.CERT, certificate)


def _replace(path: Path, certificate: x509.Certificate) -> None:
    """In one move: a process that reads meanwhile finds the old or the new one."""
    with whole(path) as beside:
        beside.write_bytes(certificates.pem(certificate))
