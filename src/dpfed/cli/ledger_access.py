"""How ``dpfed ledger`` reaches a ledger, reads what was typed, and writes files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from dpfed.cli import run
from dpfed.errors import LedgerRolledBack

if TYPE_CHECKING:
    from dpfed.ledger.ledger import Ledger
    from dpfed.ledger.rows import Head
    from dpfed.ledger.verify import Verified
    from dpfed.ledger.views import OpenReservation

ACCOUNT = "The account"

address = run.option(
    "--ledger",
    "url",
    envvar="DPFED_LEDGER",
    show_envvar=True,
    default="sqlite:///ledger.db",
    show_default=True,
    section="The ledger",
    help="A database URL, or the path of a SQLite file.",
)
output = run.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    section=run.OUTPUT,
    help="Write to this file.",
)
reason = run.option("--reason", required=True, section=ACCOUNT, help="Why; it is written into the ledger.")
common = run.combined(address, run.as_json)


def reach(url: str, *, create: bool = False) -> Ledger:
    """The ledger at a URL or in a file; only `create` makes one where there is none."""
    from dpfed.ledger.ledger import Ledger

    return Ledger(address_of(url), create=create)


def address_of(url: str) -> str | Path:
    """Return what was typed as a URL or a path."""
    return url if "://" in url else Path(url)


def many(count: int, one: str, more: str) -> str:
    """Return the count with the word that goes with it."""
    return f"{count:,} {one if count == 1 else more}"


def read_labels(texts: tuple[str, ...]) -> dict[str, str]:
    """The labels that were typed as key=value."""
    labels: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or key in labels:
            raise click.UsageError(f"--label must be KEY=VALUE, each key once, got {text!r:.80}")
        labels[key] = value
    return labels


def say_done(book: Ledger, account: str, done: str, as_json: bool) -> None:
    """Print what was done to the account, and where it stands now."""
    from dpfed.cli.show import for_whom, print_json, say
    from dpfed.report.figures import digits_for, figures
    from dpfed.report.statement import balance_facts

    balance, head = book.balance(account), str(book.head())
    if as_json:
        return print_json({"done": done, "head": head, **balance_facts(balance)})
    cap = balance.cap
    remaining = figures(balance.spent, balance.reserved, balance.remaining, digits_for(cap.epsilon))[2]
    say(f"{done} {account}: {remaining} remains of ε = {cap.epsilon:g} at δ = {cap.delta:g} {for_whom(cap)}")
    return None


def reservation_facts(each: OpenReservation) -> dict[str, Any]:
    """A reservation as plain values."""
    return {
        "run": each.run,
        "since": each.since,
        "plan": {
            account: [{"event": event.to_dict(), "count": count} for event, count in plan.items()]
            for account, plan in each.reserved.items()
        },
        "committed": each.committed,
        "left": each.left,
        "holder": each.holder,
        "is_alive": each.is_alive,
    }


def verified(url: str, kept: Head | None) -> Verified:
    """The ledger recomputed; it must contain the head that was kept."""
    with reach(url) as book:
        found = book.verify()
        if kept is not None:
            book.require(kept)
    return found


def verified_export(path: Path, kept: Head | None) -> Verified:
    """An exported file recomputed. One that was cut short is sound as well: only a head kept elsewhere tells."""
    from dpfed.ledger.rows import GENESIS, Head
    from dpfed.ledger.verify import read_export, replay

    # Whatever is not UTF-8 becomes �, and then no digest fits.
    with path.open(encoding="utf-8", errors="replace", newline="\n") as lines:
        rows = list(read_export(lines))
    heads = [Head(0, GENESIS), *(Head(row.seq, row.hash) for row in rows)]
    found = replay(rows, heads[-1])
    if kept is not None and kept not in heads:
        raise LedgerRolledBack(
            f"the export does not contain entry {kept.sequence} as it was seen before: it is older, or another's",
            kept.sequence,
        )
    return found


def require_other_file(path: Path | None, book: Ledger) -> None:
    """Nothing, if writing the path leaves the ledger's own files alone."""
    if path is None or book.file is None:
        return
    own = book.file.resolve()
    if path.resolve() in [own, *(own.with_name(own.name + end) for end in ("-wal", "-shm", "-journal"))]:
        raise click.UsageError(f"--output {path} is the ledger itself: choose another file")


def export_to_stdout(book: Ledger) -> None:
    """Print every entry as JSON; in UTF-8 on every terminal, as a letter that is lost breaks a digest."""
    sys.stdout.flush()
    stream = TextIOWrapper(sys.stdout.buffer, encoding="utf-8", newline="\n")
    try:
        book.export(stream)
    finally:
        stream.detach()  # also flushes


def last_head(path: Path) -> Head:
    """The head of the ledger when it was exported to the file."""
    from dpfed.ledger.rows import GENESIS, Head
    from dpfed.ledger.verify import read_export

    head = Head(0, GENESIS)
    with path.open(encoding="utf-8", newline="\n") as lines:
        for row in read_export(lines):
            head = Head(row.seq, row.hash)
    return head


@contextmanager
def written(path: Path) -> Iterator[TextIO]:
    """The file, open for writing text."""
    try:
        with path.open("w", encoding="utf-8", newline="\n") as stream:
            yield stream
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}") from None


def deliver(text: str, path: Path | None) -> None:
    """Print the text, or write it to the file and say so."""
    if path is None:
        return click.echo(text, nl=not text.endswith("\n"))
    with written(path) as stream:
        stream.write(text)
    return click.echo(f"wrote {path}")
