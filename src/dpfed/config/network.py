"""The ``network:`` block of a run file: who the sites are, how long a round waits for them, and the study's key.

Nothing in it changes what is computed: the same file runs on one machine, where the block is not read. Sites are known
by their keys, never by an address. Their names and declared sizes are those in the ``data:`` block.

>>> Network(key="study.key", sites={"north": {"key": "ssh-ed25519 AAAA north"}}).deadline
300.0
"""

from __future__ import annotations

from pydantic import field_validator

from dpfed.config.fields import Block, Number, setting


class SiteKeys(Block):
    """The public keys of one site."""

    key: str = setting(effect="the site's public key 'ssh-ed25519 …', by which its answers are signed")
    node: str | None = setting(
        None, effect="the public key by which the site's node is registered, if it is another one than key"
    )

    @field_validator("key", "node")
    @classmethod
    def _require_line(cls, text: str | None) -> str | None:
        return text if text is None else require_public_key(text)

    @property
    def address(self) -> str:
        """The key by which a connected node is found."""
        return self.node or self.key


class Network(Block):
    """The sites of a run over a network."""

    key: str = setting(effect="the file of the study's private key, which signs all requests")
    sites: dict[str, SiteKeys] = setting(effect="the public keys of each client of data, by its name")
    deadline: Number = setting(
        300.0, effect="seconds that a round waits for its sites; a site that was killed is away for a minute", ge=1
    )
    test: str | None = setting(
        None, effect="a public file of records, in the form of data, to measure the model on after each round"
    )


def require_public_key(text: str) -> str:
    """Return the line of a public key; whether it is one of the right kind is looked at where it is used."""
    if not text.startswith(("ssh-", "ecdsa-")) or len(text.split()) < 2 or "\n" in text.strip():
        raise ValueError("must be the one line of a .pub file, such as 'ssh-ed25519 AAAA…'")
    return text
