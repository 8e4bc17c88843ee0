"""Keys and certificates of a deployment: who may connect, and who is who. Needs no Flower.

The hub gets a certificate authority of its own and a certificate for its host names; each site a key by which Flower
knows its node. Private keys are readable by their owner alone, and none is ever written over.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     write_node_key(Path(folder)).split()[0]
'ecdsa-sha2-nistp384'
"""

from __future__ import annotations

import ipaddress
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA, CERTIFICATE, KEY = "ca.crt", "server.crt", "server.key"
NODE_KEY, NODE_PUBLIC = "node.key", "node.pub"
CA_DAYS, SERVER_DAYS = 3650, 825
LOOPBACK = ("localhost", "127.0.0.1", "::1")

PrivateKey = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def write_certificates(folder: Path, host: str) -> None:
    """Write a certificate authority and a certificate of the hub that it signed; its own key is not kept."""
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    issuer = _name("dpfed deployment")
    root = _certificate(issuer, issuer, authority.public_key(), CA_DAYS).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    names = x509.SubjectAlternativeName([_general_name(each) for each in dict.fromkeys([host, *LOOPBACK])])
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    leaf = _certificate(_name(host), issuer, server.public_key(), SERVER_DAYS)
    leaf = leaf.add_extension(names, critical=False).add_extension(usage, critical=False)
    (folder / CA).write_bytes(root.sign(authority, hashes.SHA384()).public_bytes(serialization.Encoding.PEM))
    (folder / CERTIFICATE).write_bytes(leaf.sign(authority, hashes.SHA384()).public_bytes(serialization.Encoding.PEM))
    write_secret(folder / KEY, _pem(server))


def write_node_key(folder: Path) -> str:
    """Write a node's key pair, and return the public half as Flower registers it, in one line."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_secret(folder / NODE_KEY, _openssh(key))
    public = format_public(key)
    (folder / NODE_PUBLIC).write_text(f"{public}\n", encoding="ascii")
    return public


def format_public(key: PrivateKey) -> str:
    """Return the public half of a key in OpenSSH's form, without a comment."""
    form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return key.public_key().public_bytes(*form).decode("ascii")


def write_secret(path: Path, content: bytes) -> None:
    """Write a new file that its owner alone may read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=days))
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: PrivateKey) -> bytes:
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(*form)


def _openssh(key: PrivateKey) -> bytes:
    form = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    return key.private_bytes(*form)
