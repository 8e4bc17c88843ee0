"""Certificates that a client accepts for their hosts and no others, and keys that only their owner reads."""

from __future__ import annotations

import socket
import ssl
import threading

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from dpfed.integrations import flower_files
from dpfed.integrations.flower_files import CA, CERTIFICATE, KEY, NODE_KEY, NODE_PUBLIC


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub")
    flower_files.write_certificates(folder, "hub.example")
    return folder


def shake_hands(folder, authority, name: str) -> None:
    """Raise if a client that knows the authority does not accept the server under that name."""
    here, there = socket.socketpair()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(folder / CERTIFICATE, folder / KEY)

    def answer() -> None:
        try:
            server.wrap_socket(there, server_side=True).close()
        except OSError:
            there.close()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        ssl.create_default_context(cafile=str(authority)).wrap_socket(here, server_hostname=name).close()
    finally:
        here.close()
        thread.join()


@pytest.mark.parametrize("name", ["hub.example", "localhost", "127.0.0.1"])
def test_a_hub_is_known_by_its_host_and_on_loopback(hub, name):
    shake_hands(hub, hub / CA, name)


def test_another_host_has_no_certificate(hub):
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(hub, hub / CA, "elsewhere.example")


def test_the_authority_of_another_deployment_knows_no_hub_of_this_one(hub, tmp_path):
    flower_files.write_certificates(tmp_path, "hub.example")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(hub, tmp_path / CA, "hub.example")


def test_a_nodes_two_keys_belong_together_and_the_private_one_is_the_owners(tmp_path):
    line = flower_files.write_node_key(tmp_path)
    private = load_ssh_private_key((tmp_path / NODE_KEY).read_bytes(), None)
    public = load_ssh_public_key((tmp_path / NODE_PUBLIC).read_bytes())
    assert private.public_key() == public == load_ssh_public_key(line.encode())
    assert (tmp_path / NODE_KEY).stat().st_mode & 0o077 == 0


def test_a_key_is_never_written_over(tmp_path):
    flower_files.write_node_key(tmp_path)
    with pytest.raises(FileExistsError):
        flower_files.write_node_key(tmp_path)
