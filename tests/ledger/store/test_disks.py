"""Mounts, links and locks: a disk that cannot keep a ledger is refused when the ledger is opened."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import dpfed
from dpfed.errors import InvalidArgument, LedgerUnavailable
from dpfed.ledger.store import disks
from dpfed.ledger.store.address import Address

MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:20 / /proc rw - proc proc rw
30 22 0:26 /export /data rw,relatime shared:5 master:1 - nfs4 server:/export rw
31 30 254:0 /local /data/local rw - xfs /dev/vdb rw
32 22 0:30 / /mnt/with\\040space rw - cifs //server/share rw
33 22 254:0 /home/me/ledger.db /app/ledger.db rw - ext4 /dev/vda rw
34 22 0:31 / /hidden rw - ext4 /dev/vdc rw
35 22 0:32 / /hidden rw - fuse.sshfs me@host: rw
36 22 0:33 / /odd rw - fuse.unheard-of something rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/ledger.db", "ext4"),
        ("/data/ledger.db", "nfs4"),
        ("/database/ledger.db", "ext4"),
        ("/data/local/ledger.db", "xfs"),
        ("/data/local2/ledger.db", "nfs4"),
        ("/mnt/with space/ledger.db", "cifs"),
        ("/hidden/ledger.db", "fuse.sshfs"),
        ("/odd/ledger.db", "fuse.unheard-of"),
    ],
)
def test_a_path_is_on_the_nearest_mount_and_the_last_one_there(path, kind):
    assert disks.mount_of(path, MOUNTS).kind == kind


def test_a_list_of_mounts_that_cannot_be_read_names_none():
    assert disks.mount_of("/x", "") is None
    assert disks.mount_of("/x", "garbage\n - \n1 2 3 4 - ext4") is None


def test_a_file_that_is_mounted_alone_is_refused_when_opened():
    with pytest.raises(LedgerUnavailable, match="mount the folder"):
        disks.require_suitable(Address("sqlite:////app/ledger.db"), MOUNTS)
    disks.require_suitable(Address("sqlite:////app/other.db"), MOUNTS)


@pytest.mark.parametrize("path", ["/data/ledger.db", "/mnt/with space/ledger.db", "/hidden/deep/ledger.db"])
def test_a_network_disk_is_refused_unless_the_url_consents(path):
    with pytest.raises(LedgerUnavailable, match="PostgreSQL"):
        disks.require_suitable(Address(f"sqlite:///{path}"), MOUNTS)
    disks.require_suitable(Address(f"sqlite:///{path}?network_disk=i-know"), MOUNTS)


def test_every_network_file_system_that_is_named_is_refused():
    for kind in disks.NETWORK.split():
        assert kind not in disks.LOCAL.split()
        with pytest.raises(LedgerUnavailable, match=kind):
            disks.require_suitable(Address("sqlite:////x/ledger.db"), f"1 0 0:1 / / rw - {kind} source rw")


def test_consent_in_the_url_is_no_part_of_the_file_name(tmp_path):
    with dpfed.Ledger(f"sqlite:///{tmp_path}/ledger.db?network_disk=i-know") as ledger:
        ledger.open("icu", epsilon=8.0, delta=1e-5)
        assert ledger.file == tmp_path / "ledger.db"
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.db"]


@pytest.mark.parametrize("options", ["network_disk=yes", "timeout=5", "uri=true", "mode=ro&x=1", "vfs=unix-none"])
def test_other_options_of_a_sqlite_url_are_refused_in_a_sentence(tmp_path, options):
    with pytest.raises(InvalidArgument, match="behind the \\?"):
        dpfed.Ledger(f"sqlite:///{tmp_path}/ledger.db?{options}")
    assert not list(tmp_path.iterdir())


def test_a_file_with_two_names_is_refused_by_both_when_opened(tmp_path):
    first, second = tmp_path / "ledger.db", tmp_path / "elsewhere.db"
    with dpfed.Ledger(first) as ledger:
        ledger.open("icu", epsilon=8.0, delta=1e-5)
    os.link(first, second)
    for file in (first, second):
        with pytest.raises(LedgerUnavailable, match="second name"):
            dpfed.Ledger(file)
    second.unlink()
    with dpfed.Ledger(first) as ledger:
        assert "icu" in ledger


NO_LOCKS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
static int any(const char *name, int file, int what, void *with) {
    if (what == F_SETLK || what == F_SETLKW) return 0;
    int (*real)(int, int, void *) = dlsym(RTLD_NEXT, name);
    return real(file, what, with);
}
int fcntl(int file, int what, ...) {
    va_list rest; va_start(rest, what); void *with = va_arg(rest, void *); va_end(rest);
    return any("fcntl", file, what, with);
}
int fcntl64(int file, int what, ...) {
    va_list rest; va_start(rest, what); void *with = va_arg(rest, void *); va_end(rest);
    return any("fcntl64", file, what, with);
}
"""


@pytest.fixture(scope="session")
def no_locks(tmp_path_factory) -> Path:
    """A library that makes all locks do nothing, as some file systems do."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    folder = tmp_path_factory.mktemp("no-locks")
    (folder / "no.c").write_text(NO_LOCKS)
    command = [compiler, "-shared", "-fPIC", "-o", str(folder / "no.so"), str(folder / "no.c"), "-ldl"]
    subprocess.run(command, check=True)
    return folder / "no.so"


UNKNOWN = "1 0 0:1 / / rw - fuse.unheard-of source rw"
KNOWN = "1 0 0:1 / / rw - ext4 /dev/vda rw"


def test_a_disk_whose_locks_do_nothing_is_refused(tmp_path, no_locks, monkeypatch):
    address = Address(tmp_path / "ledger.db")
    address.file.touch()
    monkeypatch.setenv("LD_PRELOAD", str(no_locks))
    with pytest.raises(LedgerUnavailable, match="lets two processes lock"):
        disks.require_locks(address, is_new=False, mountinfo=UNKNOWN)
    with pytest.raises(LedgerUnavailable, match="lets two processes lock"):
        disks.require_locks(address, is_new=True, mountinfo="")
    disks.require_locks(address, is_new=False, mountinfo=KNOWN)


def test_a_disk_whose_locks_work_is_taken_whatever_it_is(tmp_path):
    address = Address(tmp_path / "ledger.db")
    with dpfed.Ledger(address.file) as ledger:
        ledger.open("icu", epsilon=8.0, delta=1e-5)
        disks.require_locks(address, is_new=False, mountinfo=UNKNOWN)
        disks.require_locks(address, is_new=True, mountinfo="")


def test_trying_the_locks_gives_up_none_of_a_ledger_that_is_open(tmp_path):
    address = Address(tmp_path / "ledger.db")
    with dpfed.Ledger(address.file, wait=0.2) as ledger:
        ledger.open("icu", epsilon=8.0, delta=1e-5)
        with ledger._store.writing():
            disks.require_locks(address, is_new=False, mountinfo=UNKNOWN)
            with dpfed.Ledger(address.file, wait=0.2) as other, pytest.raises(LedgerUnavailable, match="busy"):
                other.open("second", epsilon=1.0, delta=1e-5)


def test_a_new_ledger_is_not_begun_on_a_refused_disk(tmp_path, monkeypatch):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 0:1 / {tmp_path} rw - nfs server:/x rw\n")
    monkeypatch.setattr(disks, "_MOUNTS", mounts)
    with pytest.raises(LedgerUnavailable, match="network disk"):
        dpfed.Ledger(tmp_path / "ledger.db")
    assert not (tmp_path / "ledger.db").exists()
