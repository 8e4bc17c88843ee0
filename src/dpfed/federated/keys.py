"""Keys by which a study and its sites know each other's messages: Ed25519, in OpenSSH's form.

A public key is one line, as ``ssh-keygen`` writes it, to be pinned in a file of the other side. Comments are dropped:
two texts of one key are equal.

>>> key = SigningKey.make()
>>> signature = key.sign(b"a message")
>>> PublicKey.parse(key.public.text).verifies(signature, b"a message")
True
>>> PublicKey.parse(key.public.text).verifies(signature, b"another one")
False
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpfed.errors import InvalidArgument
from dpfed.runs.directory import OWNER_ONLY, write_durably

SIGNATURE = 64  # bytes


@dataclass(frozen=True)
class PublicKey:
    """A public key of Ed25519, by its line of text."""

    text: str
    _key: Any = field(repr=False, compare=False)

    @classmethod
    def parse(cls, text: str, what: str = "key") -> PublicKey:
        """Return the key of a line ``ssh-ed25519 …``; refuse any other kind."""
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_ssh_public_key

        short = shorten(text)
        try:
            key = load_ssh_public_key(short.encode())
        except (ValueError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, Ed25519PublicKey):
            message = f"{what} must be one line 'ssh-ed25519 …', as the other side's .pub file has it"
            raise InvalidArgument(what, f"{message}: nobody else's messages are accepted")
        return cls(short, key)

    def verifies(self, signature: bytes, content: bytes) -> bool:
        """Return whether the signature of that content was made by the owner of the key."""
        from cryptography.exceptions import InvalidSignature

        try:
            self._key.verify(signature, content)
        except InvalidSignature:
            return False
        return True


class SigningKey:
    """A private key of Ed25519."""

    def __init__(self, key: Any) -> None:
        self._key = key

    @classmethod
    def make(cls) -> SigningKey:
        """Return a new key."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def read(cls, path: Path) -> SigningKey:
        """Return the key in a file that `write`, or ``ssh-keygen -t ed25519 -N ""``, has made."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_ssh_private_key

        try:
            key = load_ssh_private_key(path.read_bytes(), None)
        except OSError as error:
            raise InvalidArgument("key", f"{path} cannot be read ({error.strerror}): make it by ssh-keygen") from None
        except (ValueError, TypeError):
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            message = f"{path} holds no private key of Ed25519 without a password, which messages are signed with"
            raise InvalidArgument("key", f'{message}: make one by `ssh-keygen -t ed25519 -N "" -f {path}`')
        return cls(key)

    def write(self, path: Path) -> None:
        """Write the key for its owner alone, and its public half beside it."""
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        content = self._key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        write_durably(path, content, mode=OWNER_ONLY)
        write_durably(path.with_name(f"{path.name}.pub"), f"{self.public.text}\n".encode())

    @property
    def public(self) -> PublicKey:
        """The public half."""
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        key = self._key.public_key()
        return PublicKey(key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode(), key)

    def sign(self, content: bytes) -> bytes:
        """Return the signature of the content."""
        return bytes(self._key.sign(content))

    def derive(self, purpose: str) -> bytes:
        """Return a secret for another purpose, which says nothing of the key nor of other purposes."""
        return hmac.new(self._key.private_bytes_raw(), f"dpfed {purpose}".encode(), hashlib.sha256).digest()


def shorten(text: str) -> str:
    """Return a public key's line without its comment: two texts of one key are equal then."""
    return " ".join(text.split()[:2])
