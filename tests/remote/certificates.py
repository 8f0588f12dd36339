"""Certificates as whoever runs a cluster makes them: an authority of its own, and what it has signed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


class Authority:
    """Signs the certificates of one cluster."""

    def __init__(self, name: str) -> None:
        self.name, self._key = name, ec.generate_private_key(ec.SECP256R1())
        self.certificate = self._signed(name, self._key.public_key(), x509.BasicConstraints(ca=True, path_length=0))

    def _signed(
        self, name: str, key: Any, constraints: x509.BasicConstraints, address: str | None = None
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        made = x509.CertificateBuilder(_named(self.name), _named(name), key, x509.random_serial_number())
        made = made.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(hours=1))
        if address is not None:
            alternative = x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))])
            made = made.add_extension(alternative, critical=False)
        return made.add_extension(constraints, critical=True).sign(self._key, SHA256())

    def write(self, folder: Path, *, trusts: Authority | None = None, address: str | None = None) -> Path:
        """ca.pem (of ``trusts``, if that is another), cert.pem and key.pem, made for one holder (at an IP address)."""
        folder.mkdir()
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._signed(
            "holder", key.public_key(), x509.BasicConstraints(ca=False, path_length=None), address
        )
        (folder / "ca.pem").write_bytes((trusts or self).certificate.public_bytes(Encoding.PEM))
        (folder / "cert.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
        (folder / "key.pem").touch(mode=0o600)
        (folder / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return folder


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
