"""What the commands of ``dpfed ledger`` share: options, opening a ledger, reading what was typed, writing files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from dpfed.cli import options
from dpfed.errors import LedgerRolledBack

if TYPE_CHECKING:
    from dpfed.ledger.ledger import Ledger
    from dpfed.ledger.rows import Head
    from dpfed.ledger.verify import Verified
    from dpfed.ledger.views import OpenReservation

ACCOUNT = "The account"

address = options.option(
    "--ledger",
    "url",
    envvar="DPFED_LEDGER",
    show_envvar=True,
    default="sqlite:///ledger.db",
    show_default=True,
    section="The ledger",
    help="A database URL, or the path of a SQLite file.",
)
output = options.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    section=options.OUTPUT,
    help="Write to this file.",
)
reason = options.option(
    "--reason", required=True, section=ACCOUNT, help="Why this is done; it is written into the ledger."
)
common = options.combine(address, options.as_json)


def open_ledger(url: str, *, create: bool = False) -> Ledger:
    """Open the ledger at a URL or in a file; only `create` makes one where there is none."""
    from dpfed.ledger.ledger import Ledger

    return Ledger(parse_address(url), create=create)


def parse_address(url: str) -> str | Path:
    """Return a URL as it is, and anything else as a path."""
    return url if "://" in url else Path(url)


def read_labels(texts: tuple[str, ...]) -> dict[str, str]:
    """Return the labels that were typed as key=value."""
    labels: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or key in labels:
            raise click.UsageError(
                f"--label must be KEY=VALUE, with each key once: write --label basis=consent, not {text!r:.80}"
            )
        labels[key] = value
    return labels


def say_done(book: Ledger, account: str, done: str, as_json: bool) -> None:
    """Print what was done to the account, and its balance now."""
    from dpfed.cli.show import describe_unit, print_json, say
    from dpfed.report.figures import digits_for, format_balance
    from dpfed.report.statement import collect_balance

    balance, head = book.balance(account), str(book.head())
    if as_json:
        return print_json({"done": done, "head": head, **collect_balance(balance)})
    cap = balance.cap
    remaining = format_balance(balance.spent, balance.reserved, balance.remaining, digits_for(cap.epsilon))[2]
    say(f"{done} {account}: {remaining} remains of ε = {cap.epsilon:g} at δ = {cap.delta:g} {describe_unit(cap)}")
    return None


def collect_reservation(each: OpenReservation) -> dict[str, Any]:
    """Return a reservation as plain values."""
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


def verify_ledger(url: str, kept: Head | None) -> Verified:
    """Recompute the ledger; it must contain the head that was kept."""
    with open_ledger(url) as book:
        found = book.verify()
        if kept is not None:
            book.require(kept)
    return found


def verify_export(path: Path, kept: Head | None) -> Verified:
    """Recompute an exported file; whether its end was cut off only a head that was kept elsewhere can show."""
    from dpfed.ledger.rows import GENESIS, Head
    from dpfed.ledger.verify import read_export, replay

    # Whatever is not UTF-8 becomes �, and then no digest fits.
    with path.open(encoding="utf-8", errors="replace", newline="\n") as lines:
        rows = list(read_export(lines))
    heads = [Head(0, GENESIS), *(Head(row.seq, row.hash) for row in rows)]
    found = replay(rows, heads[-1])
    if kept is not None and kept not in heads:
        raise LedgerRolledBack(
            f"the export does not contain entry {kept.sequence} with the digest that was kept, so it is older or of "
            "another ledger, and charges may be missing: ask for a new export",
            kept.sequence,
        )
    return found


def format_contents(found: Verified) -> str:
    """Return how many entries and accounts were verified, as text."""
    from dpfed.cli.show import format_count

    return f"{format_count(found.rows, 'entry', 'entries')}, {format_count(found.accounts, 'account', 'accounts')}"


def require_other_file(path: Path | None, book: Ledger) -> None:
    """Refuse an output path that is one of the ledger's own files."""
    if path is None or book.file is None:
        return
    own = book.file.resolve()
    if path.resolve() in [own, *(own.with_name(own.name + end) for end in ("-wal", "-shm", "-journal"))]:
        raise click.UsageError(f"--output {path} is the ledger itself, which would be overwritten: choose another file")


def export_to_stdout(book: Ledger) -> None:
    """Print every entry as JSON, in UTF-8 on every terminal: a letter that is replaced breaks a digest."""
    sys.stdout.flush()
    stream = TextIOWrapper(sys.stdout.buffer, encoding="utf-8", newline="\n")
    try:
        book.export(stream)
    finally:
        stream.detach()  # also flushes


def read_last_head(path: Path) -> Head:
    """Return the head of the ledger when it was exported to the file."""
    from dpfed.ledger.rows import GENESIS, Head
    from dpfed.ledger.verify import read_export

    head = Head(0, GENESIS)
    with path.open(encoding="utf-8", newline="\n") as lines:
        for row in read_export(lines):
            head = Head(row.seq, row.hash)
    return head


@contextmanager
def open_output(path: Path) -> Iterator[TextIO]:
    """Open a file for writing text; refuse one that cannot be written."""
    try:
        with path.open("w", encoding="utf-8", newline="\n") as stream:
            yield stream
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}") from None


def deliver(text: str, path: Path | None) -> None:
    """Print the text, or write it to the file and say so."""
    if path is None:
        return click.echo(text, nl=not text.endswith("\n"))
    with open_output(path) as stream:
        stream.write(text)
    return click.echo(f"wrote {path}")
