"""An own certificate authority for a site without one: its certificate is pinned by hash when a machine joins (D35).

Files in ``<data folder>/tls/``: ca.pem, ca-key.pem, server.pem (certificate, then the CA's), server-key.pem; keys have
mode 0600. The CA may sign names of this site only in the sense that nothing else trusts it.
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from agent.config import file_write_private

CA_DAYS = 3650
SERVER_DAYS = 825
#: Clocks of a lab differ: a certificate is valid from a day ago.
SKEW = datetime.timedelta(days=1)
_HOST = re.compile(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9-]{0,62})?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,62})?)*")


class TlsError(ValueError):
    """The certificate can't be made or read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    folder: Path

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def ca_key(self) -> Path:
        return self.folder / "ca-key.pem"

    @property
    def cert(self) -> Path:
        return self.folder / "server.pem"

    @property
    def key(self) -> Path:
        return self.folder / "server-key.pem"


def names_parse(hosts: Sequence[str]) -> list[x509.GeneralName]:
    """Host names and addresses, each once and in order. Raises TlsError naming the one that is neither."""
    found: list[x509.GeneralName] = []
    for host in dict.fromkeys(host.strip().strip("[]") for host in hosts):
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            if len(host) > 253 or not _HOST.fullmatch(host):
                raise TlsError(f"{host[:80]!r} is neither a host name nor an IP address.") from None
            found.append(x509.DNSName(host.lower()))
    if not found:
        raise TlsError("A server certificate needs at least one name or address.")
    return found


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()).decode()


def _cert_pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _usage(*, is_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True, key_cert_sign=is_ca, crl_sign=is_ca, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def ca_make(files: TlsFiles, *, now: datetime.datetime) -> None:
    """A new authority, written over an old one."""
    key = ec.generate_private_key(ec.SECP256R1())
    # A number in the name: two authorities of one site, old and new, must not be taken for each other.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"NebulaGrid CA {x509.random_serial_number() % 10**8:08d}")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + datetime.timedelta(days=CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(is_ca=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    files.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file_write_private(files.ca_key, _key_pem(key))
    file_write_private(files.ca, _cert_pem(certificate), mode=0o644)


def server_make(files: TlsFiles, *, hosts: Sequence[str], now: datetime.datetime) -> None:
    """A server certificate for ``hosts``, signed by the folder's CA. Raises TlsError."""
    names = names_parse(hosts)
    try:
        ca = x509.load_pem_x509_certificate(files.ca.read_bytes())
        ca_key = serialization.load_pem_private_key(files.ca_key.read_bytes(), password=None)
    except (OSError, ValueError) as error:
        raise TlsError(f"The authority in {files.folder} can't be read: {error}.") from error
    if not isinstance(ca_key, ec.EllipticCurvePrivateKey) or ca_key.public_key() != ca.public_key():
        raise TlsError(f"{files.ca_key} is not the key of {files.ca}.")
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, str(names[0].value)[:64])]))
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(min(now + datetime.timedelta(days=SERVER_DAYS), ca.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(is_ca=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    file_write_private(files.key, _key_pem(key))
    file_write_private(files.cert, _cert_pem(certificate) + _cert_pem(ca), mode=0o644)


def ca_find(*, tls_ca: str, tls_cert: str) -> Path | None:
    """The file that verifies our certificate where the system's authorities don't: NEBULA_TLS_CA, or a self-signed
    certificate itself; None = a public one."""
    if tls_ca:
        return Path(tls_ca).resolve()
    if not tls_cert:
        return None
    path = Path(tls_cert).resolve()
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError):
        return None  # the web server will say what is wrong with it
    return path if certificate.issuer == certificate.subject else None


def ca_sha256(path: Path) -> str:
    """What ``--ca-sha256`` pins: the SHA-256 of the file as it is served. Raises TlsError."""
    try:
        data = path.read_bytes()
        ssl.create_default_context(cadata=data.decode("ascii"))
    except (OSError, ValueError, ssl.SSLError) as error:
        raise TlsError(f"The CA file {path} can't be used: {error}.") from error
    return hashlib.sha256(data).hexdigest()
