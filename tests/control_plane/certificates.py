"""Certificates of a control plane that lives for minutes: an authority, servers and users.

Kubernetes reads a client's common name as the user, and its organizations as the groups.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID = dt.timedelta(days=2)
EARLIER = dt.timedelta(hours=1)  # a clock that is set back meanwhile harms nothing


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, in PEM."""

    certificate: bytes
    key: bytes

    def write(self, folder: Path, name: str) -> None:
        """Write `name.crt` and `name.key`."""
        (folder / f"{name}.crt").write_bytes(self.certificate)
        (folder / f"{name}.key").write_bytes(self.key)


class Authority:
    """The certificate authority of one control plane.

    Its certificates carry its key identifier, as Python 3.13 requires (RFC 5280).
    """

    def __init__(self) -> None:
        """Make the authority's own key and certificate."""
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test-control-plane")])
        signed = (
            _begun(self._name, self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = signed.public_bytes(serialization.Encoding.PEM)

    def server(self, names: Sequence[str], addresses: Collection[str]) -> Certificate:
        """Sign a certificate for a server with these names and addresses."""
        alternatives = [
            *(x509.DNSName(name) for name in names),
            *(x509.IPAddress(ipaddress.ip_address(address)) for address in sorted(addresses)),
        ]
        return self._sign(
            [x509.NameAttribute(NameOID.COMMON_NAME, names[0])],
            ExtendedKeyUsageOID.SERVER_AUTH,
            x509.SubjectAlternativeName(alternatives),
        )

    def user(self, name: str, groups: Sequence[str] = ()) -> Certificate:
        """Sign a certificate for a user of the API with these groups."""
        organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        common = x509.NameAttribute(NameOID.COMMON_NAME, name)
        return self._sign([*organizations, common], ExtendedKeyUsageOID.CLIENT_AUTH)

    def _sign(
        self,
        subject: Sequence[x509.NameAttribute],
        purpose: x509.ObjectIdentifier,
        alternatives: x509.SubjectAlternativeName | None = None,
    ) -> Certificate:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _begun(x509.Name(subject), self._name, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        if alternatives is not None:
            builder = builder.add_extension(alternatives, critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        return Certificate(signed.public_bytes(serialization.Encoding.PEM), _private(key))


def write_signing_keys(folder: Path) -> None:
    """Write `sa.key` and `sa.pub`, the keys that sign and verify service account tokens."""
    key = ec.generate_private_key(ec.SECP256R1())
    (folder / "sa.key").write_bytes(_private(key))
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    (folder / "sa.pub").write_bytes(public)


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(now + VALID)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
