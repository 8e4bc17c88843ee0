"""A throw-away PostgreSQL cluster from the system's binaries: one directory, one Unix socket, no network port.

PostgreSQL refuses to run as root, so there it runs as an unprivileged user. The server is the child of a shell that
waits for a line or the end of its input: it stops when it is told to, and also when the tests are killed.
"""

from __future__ import annotations

import os
import pwd
import resource
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg
from psycopg import sql

USER = "dpfed"
STARTS_WITHIN = 60.0
SETTINGS = {
    "listen_addresses": "",
    "max_connections": "150",
    "shared_buffers": "32MB",
    "log_min_messages": "fatal",
}
# QUIT is an immediate stop: no goodbye to anyone, as if the machine had crashed. At the end of the input the tests are
# dead and nobody else will clear up.
GUARDED = """
"$@" & server=$!
read -r word; is_over=$?
kill -QUIT $server; wait $server
[ $is_over -eq 0 ] || rm -rf -- "$0"
"""


class NoPostgres(Exception):
    """There are no binaries to start a cluster from."""


def binaries() -> Path:
    """The directory of the newest server on this machine: that of the PATH, else where Debian puts it."""
    on_path = shutil.which("initdb")
    if on_path and shutil.which("postgres"):
        return Path(on_path).resolve().parent
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if not found:
        raise NoPostgres("no PostgreSQL server here (initdb and postgres on the PATH or in /usr/lib/postgresql)")
    return max(found, key=lambda path: float(path.parent.name))


def unprivileged() -> pwd.struct_passwd | None:
    """Whom to run as instead of root; nobody else when this is not root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return pwd.getpwnam("postgres" if "postgres" in names else "nobody")


class Cluster:
    """A server with its own data; ``fsync`` stays on, because what is durable is what is tested."""

    def __init__(self, *options: str) -> None:
        self._binaries = binaries()
        # A Unix socket's path has at most 107 bytes: pytest's own directories are too deep.
        self.directory = Path(tempfile.mkdtemp(prefix="dpfed-pg-"))
        self._user = unprivileged()
        self._databases = 0
        self._free: list[str] = []
        self._server: subprocess.Popen[bytes] | None = None
        if self._user:
            os.chown(self.directory, self._user.pw_uid, self._user.pw_gid)
        data = str(self.directory / "data")
        settled = ["--no-sync", "--auth=trust", f"--username={USER}", "--encoding=UTF8", "--locale=C"]
        with self._popen("initdb", *settled, *options, data) as made:
            pass
        if made.returncode:
            raise RuntimeError(f"initdb failed: {self._log()}")
        self.start()

    def start(self, largest_file: int | None = None) -> None:
        """Start the server; no file of it may grow beyond so many bytes."""
        settings = [word for name, value in SETTINGS.items() for word in ("-c", f"{name}={value}")]
        command = [str(self._binaries / "postgres"), "-D", str(self.directory / "data"), "-k", str(self.directory)]
        guarded = ("-c", GUARDED, str(self.directory), *command, *settings)
        self._server = self._popen("/bin/sh", *guarded, largest_file=largest_file)
        deadline = time.monotonic() + STARTS_WITHIN
        while not self._answers():
            if time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not answer within {STARTS_WITHIN:.0f} s: {self._log()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop at once, as in a crash."""
        if self._server is not None:
            self._server.communicate(b"stop\n", timeout=STARTS_WITHIN)
            self._server = None

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.directory)

    def new_database(self) -> str:
        """The name of an empty database."""
        return self._free.pop() if self._free else self.copy("template0")

    def copy(self, name: str) -> str:
        """The name of a new database, a copy of one that nobody is connected to."""
        self._databases += 1
        other = f"ledger_{self._databases}"
        self.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(other), sql.Identifier(name)))
        return other

    def give_back(self, name: str) -> None:
        """Empty the database for the next one who asks: to make and drop one costs a checkpoint each."""
        self.disconnect_all(name)
        self.execute(sql.SQL("ALTER DATABASE {} RESET ALL").format(sql.Identifier(name)))
        self.execute(sql.SQL("DROP SCHEMA public CASCADE; CREATE SCHEMA public"), name)
        self._free.append(name)

    def url(self, name: str) -> str:
        """What SQLAlchemy connects to."""
        return f"postgresql+psycopg://{USER}@/{name}?host={self.directory}"

    def connect(self, name: str = "postgres") -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(f"postgresql://{USER}@/{name}?host={self.directory}", autocommit=True)

    def execute(self, statement: sql.Composable, name: str = "postgres") -> None:
        with self.connect(name) as connection:
            connection.execute(statement)

    def backends(self, name: str) -> int:
        """How many clients are connected to the database."""
        with self.connect() as connection:
            query = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'"
            return connection.execute(query, [name]).fetchone()[0]

    def disconnect_all(self, name: str) -> None:
        """End every client's connection to the database; returns when they are gone."""
        with self.connect() as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
                "WHERE datname = %s AND backend_type = 'client backend'",
                [name],
            )

    def _answers(self) -> bool:
        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def _popen(self, program: str, *arguments: str, largest_file: int | None = None) -> subprocess.Popen[bytes]:
        def limit() -> None:
            _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, most))

        who = {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []} if self._user else {}
        with (self.directory / "log").open("ab") as log:
            return subprocess.Popen(
                [str(self._binaries / program), *arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                preexec_fn=None if largest_file is None else limit,
                start_new_session=True,  # Ctrl-C is for the tests, which then stop the server in their own order
                **who,
            )

    def _log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")[-2000:]
