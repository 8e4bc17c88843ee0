"""Whether a disk can keep a SQLite ledger: a folder of its own, one name for the file, and locks that lock.

A file that is mounted alone, or has a second name, has its write-ahead log elsewhere than others look for it. On a
network file system two machines do not see each other's log, and on some file systems locks do nothing: then commits
are acknowledged and lost.

>>> text = "30 1 0:26 / /data rw - nfs4 server:/export rw"
>>> mount_of("/data/ledger.db", text).kind
'nfs4'
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from dpfed.errors import LedgerUnavailable
from dpfed.ledger.store.address import CONSENT, Address

_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(r"\\([0-7]{3})")
# File systems of one machine whose locks are known to work.
LOCAL = "ext2 ext3 ext4 xfs btrfs zfs f2fs jfs reiserfs bcachefs nilfs2 tmpfs ramfs overlay aufs ecryptfs"
# File systems that several machines may have mounted at once, or that pass a disk of another system through.
NETWORK = (
    "nfs nfs3 nfs4 cifs smb2 smb3 smbfs ncpfs 9p drvfs afs coda ceph lustre gpfs beegfs orangefs pvfs2 "
    "ocfs2 gfs2 glusterfs davfs vboxsf prl_fs vmhgfs fuse.sshfs fuse.glusterfs fuse.ceph fuse.ceph-fuse "
    "fuse.s3fs fuse.rclone fuse.gcsfuse fuse.davfs fuse.davfs2 fuse.juicefs fuse.blobfuse fuse.blobfuse2 "
    "fuse.mount-s3 fuse.goofys fuse.smbnetfs fuse.curlftpfs fuse.vmhgfs-fuse fuse.moosefs fuse.mfs "
    "fuse.seaweedfs fuse.cvmfs2"
)
# Locks a byte that SQLite never touches in one process, and tries it in another. It runs outside this process, where
# closing the file would give up the locks of every connection to it.
_TRIAL = """
import fcntl, os, sys
def locks():
    file = os.open(sys.argv[1], os.O_RDWR)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 1 << 40)
    except BlockingIOError:
        return False
    return True
if not locks():
    os._exit(0)
child = os.fork()
if child == 0:
    os._exit(3 if locks() else 0)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
_USELESS = 3


class Mount(NamedTuple):
    """A mount point and the kind of file system that is there."""

    point: str
    kind: str


def require_suitable(address: Address, mountinfo: str | None = None) -> None:
    """Refuse a file that is mounted alone or has two names, and a network disk without consent."""
    path = os.path.realpath(address.file)
    mount = mount_of(path, _read_mounts() if mountinfo is None else mountinfo)
    if mount is not None and mount.point == path:
        raise LedgerUnavailable(
            f"the ledger at {address.shown} is a file that is mounted alone, so its log lies outside the mount and "
            "what is committed would be lost: mount the folder that it is in (docker run -v FOLDER:FOLDER)"
        )
    if Path(path).exists() and Path(path).stat().st_nlink > 1:
        raise LedgerUnavailable(
            f"the file of the ledger at {address.shown} has a second name (a hard link), and whoever opens it by the "
            "other name would not see its log: remove one of the names, or copy it with dpfed ledger backup"
        )
    if mount is not None and mount.kind in NETWORK.split() and not address.accepts_network:
        raise LedgerUnavailable(
            f"the ledger at {address.shown} is on a network disk ({mount.kind}), where a SQLite file may lose commits "
            f"that were acknowledged: use PostgreSQL or a local disk, or add ?{'='.join(CONSENT)} to the url if one "
            "machine alone ever uses it"
        )


def require_locks(address: Address, *, is_new: bool, mountinfo: str | None = None) -> None:
    """Refuse a file system whose locks do nothing, by trying them with a second process where they are not known.

    Where the system does not name its file systems, only the disk of a new ledger is tried.
    """
    mount = mount_of(os.path.realpath(address.file), _read_mounts() if mountinfo is None else mountinfo)
    is_unknown = is_new if mount is None else mount.kind not in LOCAL.split()
    if is_unknown and not _are_locks_kept(address.file):
        raise LedgerUnavailable(
            f"the disk of the ledger at {address.shown} lets two processes lock the same file at once, so that commits "
            "would overwrite each other: put it on a local disk, or use PostgreSQL"
        )


def is_local(address: Address) -> bool:
    """Return whether the ledger's file system is known to be one of this machine alone."""
    mount = mount_of(os.path.realpath(address.file), _read_mounts())
    return mount is not None and mount.kind in LOCAL.split()


def mount_of(path: str, mountinfo: str) -> Mount | None:
    """Return the mount that holds the path; of several at one place the last, which hides the others."""
    found = None
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        if len(before.split(" ")) < 5 or not after:
            continue
        point = _ESCAPED.sub(lambda code: chr(int(code[1], 8)), before.split(" ")[4])
        holds = path == point or path.startswith(point.rstrip("/") + "/")
        if holds and (found is None or len(point) >= len(found.point)):
            found = Mount(point, after.split(" ")[0])
    return found


def _read_mounts() -> str:
    try:
        return _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def _are_locks_kept(path: Path) -> bool:
    """Return whether a lock of one process is refused to another; true also where it cannot be tried."""
    command = [sys.executable, "-I", "-S", "-c", _TRIAL, str(path)]
    tried = subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - our own words
    return tried.returncode != _USELESS
