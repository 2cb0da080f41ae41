"""Keys and certificates: a CA, the server's kit and one kit per site.

    DIR/ca/            key.pem cert.pem                     stays with who runs the federation
    DIR/server/        key.pem cert.pem ca.pem sites.txt    goes to the server
    DIR/sites/NAME/    key.pem cert.pem ca.pem              goes to that site, by a safe way
                       batch.key                            made there, and never leaves it

A site may make its key itself: then DIR/sites/NAME has no key.pem, see `signing`, which also renews
certificates. A key stays the same then, so files that change are replaced one by one.

A site is who its certificate says (the subject's common name), and nothing else. `sites.txt` is the
allow-list: one name a line, in the order of the sites' numbers. A certificate of the server cannot
play a site, nor a site's the server: the extended key usage says which one it is.
"""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path

from aspire.engines.grpc import certificates
from aspire.engines.grpc.certificates import Signer

logger = logging.getLogger("aspire")
KEY = "key.pem"
CERT = "cert.pem"
CA = "ca.pem"
SITES = "sites.txt"
BATCHES = "batch.key"
SECRET = 32  # its bytes
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._()-]{0,63}")


@dataclass(frozen=True)
class Kit:
    """What one side needs to speak: its key, its certificate and the CA that it believes."""

    folder: Path
    name: str
    key: bytes
    certificate: bytes
    ca: bytes


# ---------------------------------------------------------------- making


def init(
    folder: Path, sites: list[str], hosts: list[str], days: int, *, keys_at_sites: bool = False
) -> None:
    """A new federation in a new or empty folder; `keys_at_sites`: without the kits of sites."""
    check_names(sites)
    if not hosts or not all(hosts):
        raise ValueError(f"server={','.join(hosts)!r}: expected the server's host name or address")
    check_days(days)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(
            f"{folder} is not empty, and keys are never overwritten: expected a new folder"
        )
    signer = _make_ca(folder / "ca", days)
    _kit(folder / "server", signer, "server", days, hosts)
    create(folder / "server" / SITES, "".join(f"{name}\n" for name in sites).encode(), 0o644)
    for name in [] if keys_at_sites else sites:
        _kit(folder / "sites" / name, signer, name, days)


def add(folder: Path, name: str, days: int, *, keys_at_sites: bool = False) -> None:
    """One more site: its name at the end of the allow-list, and its kit but for `keys_at_sites`."""
    listed = folder / "server" / SITES
    check_names([*allowed(folder / "server"), name])
    check_days(days)
    if (folder / "sites" / name).exists():
        raise ValueError(f"{folder / 'sites' / name} exists, and keys are never overwritten")
    if not keys_at_sites:
        _kit(folder / "sites" / name, read_ca(folder / "ca"), name, days)
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


def check_days(days: int) -> None:
    if not 1 <= days <= 36500:
        raise ValueError(f"days={days}: expected 1 to 36500")


def _make_ca(folder: Path, days: int) -> Signer:
    signer = certificates.own_certificate(certificates.new_key(), days)
    make_folder(folder)
    create(folder / KEY, certificates.pem_key(signer.key), 0o600)
    create(folder / CERT, certificates.pem(signer.certificate), 0o644)
    return signer


def _kit(
    folder: Path, signer: Signer, name: str, days: int, hosts: list[str] | None = None
) -> None:
    """A key and its certificate: of the server where `hosts` says under which names."""
    key = certificates.new_key()
    names = None if hosts is None else certificates.host_names(hosts)
    certificate = certificates.issued(signer, key.public_key(), name, days, names)
    make_folder(folder)
    create(folder / KEY, certificates.pem_key(key), 0o600)
    create(folder / CERT, certificates.pem(certificate), 0o644)
    create(folder / CA, certificates.pem(signer.certificate), 0o644)


def make_folder(path: Path) -> None:
    for folder in (*reversed(path.parents), path):
        if not folder.exists():
            folder.mkdir(mode=0o700)


def create(path: Path, content: bytes, mode: int) -> None:
    """A new file that was never readable for others, not even for a moment."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


# ---------------------------------------------------------------- reading


def read(folder: Path) -> Kit:
    """A kit as `init` made it."""
    kit = _kit_of(folder, _files(folder))
    _warn_if_open(folder / KEY)
    for name in (CERT, CA):
        certificate = certificates.valid((folder / name).read_bytes(), folder / name)
        if certificates.expires_soon(certificate):
            end = f"{certificate.not_valid_after_utc:%Y-%m-%d}"
            logger.warning("%s expires on %s: expected a renewed one by then", folder / name, end)
    return kit


def renewed(kit: Kit) -> Kit:
    """The kit as its folder has it now; as it was, where nothing or nothing whole is new there."""
    try:
        found = _files(kit.folder)
        if tuple(found.values()) == (kit.key, kit.certificate, kit.ca):
            return kit
        new = _kit_of(kit.folder, found)
        if new.name != kit.name:
            raise ValueError(f"{kit.folder / CERT} is of {new.name!r}: expected {kit.name!r}")
    except (ValueError, OSError) as error:
        logger.warning("the certificate stays as it was: %s", error)
        return kit
    logger.warning("%s: took the new certificate in %s", kit.name, kit.folder)
    return new


def _files(folder: Path) -> dict[str, bytes]:
    for name in (KEY, CERT, CA):
        if not (folder / name).is_file():
            raise ValueError(
                f"kit={str(folder)!r} has no {name}: expected a kit of aspire federation"
            )
    return {name: (folder / name).read_bytes() for name in (KEY, CERT, CA)}


def _kit_of(folder: Path, found: dict[str, bytes]) -> Kit:
    certificate = certificates.valid(found[CERT], folder / CERT)
    certificates.valid(found[CA], folder / CA)
    if certificates.private_key(folder / KEY, found[KEY]).public_key() != certificate.public_key():
        raise ValueError(f"{folder / CERT} belongs to another key: expected that of {KEY} there")
    return Kit(folder, certificates.common_name(certificate), found[KEY], found[CERT], found[CA])


def batch_key(folder: Path) -> bytes:
    """The secret that draws a site's batches: made on first use, kept across restarts."""
    path = folder / BATCHES
    try:
        create(path, os.urandom(SECRET), 0o600)
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


def allowed(server: Path) -> list[str]:
    """The names in the server kit's list; what follows a # is a remark."""
    path = server / SITES
    if not path.is_file():
        raise ValueError(f"kit={str(server)!r} has no {SITES}: expected the kit of the server")
    lines = path.read_text(encoding="utf-8").splitlines()
    names = [name for line in lines if (name := line.partition("#")[0].strip())]
    check_names(names)
    return names


def read_ca(folder: Path) -> Signer:
    for name in (KEY, CERT):
        if not (folder / name).is_file():
            raise ValueError(
                f"{folder} has no {name}: expected the CA that aspire federation init made"
            )
    key = certificates.private_key(folder / KEY, (folder / KEY).read_bytes())
    return Signer(key, certificates.certificate_of((folder / CERT).read_bytes(), folder / CERT))
