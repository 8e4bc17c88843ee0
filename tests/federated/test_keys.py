"""Keys of a study and its sites."""

from __future__ import annotations

import pytest

from dpfed.errors import InvalidArgument
from dpfed.federated.keys import PublicKey, SigningKey, shorten


def test_a_key_that_was_written_signs_as_before_and_is_for_its_owner_alone(tmp_path):
    key = SigningKey.make()
    key.write(tmp_path / "site.key")
    again = SigningKey.read(tmp_path / "site.key")
    assert again.public == key.public == PublicKey.parse((tmp_path / "site.key.pub").read_text())
    assert key.public.verifies(again.sign(b"content"), b"content")
    assert (tmp_path / "site.key").stat().st_mode & 0o077 == 0


def test_the_comment_of_a_line_is_dropped():
    text = SigningKey.make().public.text
    assert PublicKey.parse(f"  {text} somebody@somewhere\n").text == text == shorten(f"{text} north")


def test_a_signature_of_another_key_or_of_other_content_is_refused():
    key, other = SigningKey.make(), SigningKey.make()
    assert not key.public.verifies(other.sign(b"content"), b"content")
    assert not key.public.verifies(key.sign(b"content"), b"another")
    assert not key.public.verifies(bytes(64), b"content")
    assert not key.public.verifies(b"short", b"content")


@pytest.mark.parametrize("text", ["", "ssh-ed25519 AAAA", "ssh-rsa AAAAB3NzaC1yc2E=", "no key at all"])
def test_what_is_no_public_key_of_that_kind_is_refused(text):
    with pytest.raises(InvalidArgument, match="server_key must be one line 'ssh-ed25519"):
        PublicKey.parse(text, "server_key")


def test_a_missing_or_foreign_private_key_says_how_to_make_one(tmp_path):
    with pytest.raises(InvalidArgument, match="cannot be read"):
        SigningKey.read(tmp_path / "none")
    (tmp_path / "text").write_text("no key")
    with pytest.raises(InvalidArgument, match="ssh-keygen -t ed25519"):
        SigningKey.read(tmp_path / "text")


def test_secrets_for_other_purposes_differ_and_come_again():
    key = SigningKey.make()
    assert key.derive("files") == key.derive("files") != key.derive("asks")
