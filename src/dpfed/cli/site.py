"""``dpfed site``: a data owner's own end of a run over a network, with its own records, ledger and policy."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpfed.cli import ledger_access, options
from dpfed.cli.sections import Command, Group

if TYPE_CHECKING:
    from dpfed.config.site import SiteConfig, SiteFile
    from dpfed.ledger.ledger import Ledger

PATIENCE = 30.0  # seconds that the process which serves may take to release a run
SITE, DATA, ACCOUNT, POLICY = "The site", "Its records", "Its account", "Its policy"

site_file = click.argument("file", type=click.Path(dir_okay=False, path_type=Path), default="site.yaml")
reason = options.option(
    "--reason", required=True, section=SITE, help="Why this is done; it is written into the ledger."
)


@click.command(cls=Command)
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@options.option("--name", required=True, section=SITE, help="The name of the site in its studies.")
@options.option("--superlink", required=True, section=SITE, help="The address of the hub, such as hub.example:9092.")
@options.option(
    "--server-key", required=True, section=SITE, help="The study's public key, 'ssh-ed25519 …', or a file that has it."
)
@options.option("--source", required=True, section=DATA, help="The records, such as records.csv, from the new folder.")
@options.option("--label", section=DATA, help="The column to predict.")
@options.option("--classes", section=DATA, help="The values of the label, separated by commas.")
@options.option("--size", type=int, required=True, section=DATA, help="How many records the site declares in public.")
@options.option(
    "--epsilon", type=float, required=True, section=ACCOUNT, help="The cap of the site's account, for all studies."
)
@options.option("--delta", type=float, required=True, section=ACCOUNT, help="The δ of the site's account.")
@options.adjacency
@options.option(
    "--styles", default="sample,hybrid", show_default=True, section=POLICY, help="The styles that a study may have."
)
@options.option(
    "--epsilon-per-run", type=float, section=POLICY, help="The most that one run may cost.  [default: half the cap]"
)
@options.option(
    "--least-noise", type=float, default=0.5, show_default=True, section=POLICY, help="The least noise multiplier."
)
@options.option(
    "--most-clip", type=float, default=1.0, show_default=True, section=POLICY, help="The largest clip norm."
)
@options.as_json
def init(folder: Path, as_json: bool, **given: Any) -> None:
    """Write a site's file, keys and ledger into a new folder.

    The site file is commented: read it, and tighten its policy. The line that is printed goes into the study's run
    file; the private keys never leave the folder.

    \b
      dpfed site init north --name north --superlink hub.example:9092 --server-key study.key.pub \\
        --source records.csv --label outcome --classes ill,well --size 182 --epsilon 8 --delta 1e-5
    """
    from dpfed.cli.show import print_json, say
    from dpfed.federated.site_files import SITE_FILE, write_site
    from dpfed.guarantee import Guarantee

    config = _make_config(given)
    cap = Guarantee(given["epsilon"], given["delta"], adjacency=given["adjacency"])
    key = write_site(folder, config, cap)
    if as_json:
        return print_json({"file": str(folder / SITE_FILE), "site": config.site, "key": key})
    say(f"wrote {folder / SITE_FILE}, with its keys and its ledger; put the records where data.source says")
    say("For the study's run file, below network.sites:")
    return say(f"  {config.site}: {{key: {key}}}")


def _make_config(given: dict[str, Any]) -> SiteConfig:
    from dpfed.config.site import SiteConfig

    key = Path(given["server_key"])
    classes = given["classes"]
    data = {"source": given["source"], "label": given["label"], "size": given["size"]}
    limits = {name: given[name] for name in ("least_noise", "most_clip")}
    values = {
        "site": given["name"],
        "superlink": given["superlink"],
        "server_key": key.read_text(encoding="utf-8").strip() if key.is_file() else given["server_key"],
        "data": data | ({"classes": classes.split(",")} if classes else {}),
        "ledger": {"url": "sqlite:///ledger.db", "account": f"{given['name']}-records"},
        "policy": limits
        | {"styles": given["styles"].split(","), "epsilon_per_run": given["epsilon_per_run"] or given["epsilon"] / 2},
    }
    return SiteConfig.of(values)


@click.command(cls=Command)
@site_file
@options.as_json
def check(file: Path, as_json: bool) -> None:
    """Read a site's file, keys, records and ledger, as serving would.

    Nothing is sent. What is wrong with a record is said here, and never to a server.

    \b
      dpfed site check north/site.yaml
    """
    from dpfed.cli.show import print_json, say
    from dpfed.config.site import SiteFile
    from dpfed.federated.site import Site

    read = SiteFile.read(file)
    site = Site(read)
    site.close()
    facts = {"site": site.name, "key": site.public_key, "policy": read.config.policy.model_dump(mode="json")}
    if as_json:
        return print_json(facts)
    say(f"{site.name}: the file, its keys, its records and its ledger are in order")
    if read.config.seed is not None:
        say("NOT PRIVATE: seed is set, and whoever knows it can subtract the noise")
    return say(f"its answers are signed by {site.public_key}")


@click.command(cls=Command)
@site_file
def serve(file: Path) -> None:
    """Answer the requests of the study until stopped.

    Records, ledger and torch stay open. No code of the hub is fetched or run: the site answers signed requests that its
    policy allows, and refuses all others with a fixed word; why, this log says. Ctrl-C stops it at any time, and
    nothing is lost: start it again.

    \b
      dpfed site serve north/site.yaml
    """
    from dpfed.config.site import SiteFile
    from dpfed.federated.site import Site

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    node = _import_node()
    read = SiteFile.read(file)
    site = Site(read)
    config = read.config
    settings = node.NodeSettings(
        config.superlink, read.find(config.root_certificates), read.find(config.node_key), config.policy.most_bytes
    )
    click.echo(f"{site.name}: serving {config.superlink}", err=True)
    try:
        node.serve(settings, site.handle, between=site.release_asked)
    except KeyboardInterrupt:
        click.echo(f"{site.name}: stopped; `dpfed site serve {file}` goes on", err=True)
    finally:
        site.close()


def _import_node() -> Any:
    from importlib import import_module

    try:
        return import_module("dpfed.integrations.flower_node")
    except ImportError as error:
        message = "a site is served through Flower, which is not installed: pip install 'dpfed[flower]'"
        raise click.UsageError(f"{message} ({error.name} is missing)") from None


@click.command(cls=Command)
@site_file
@options.as_json
def status(file: Path, as_json: bool) -> None:
    """Show a site's account and the runs under way.

    For the site's owner: what it shows is not sent to anybody.

    \b
      dpfed site status north/site.yaml
    """
    from dpfed.cli.show import print_json, say

    read, book = _open(file)
    account = read.config.ledger.account
    with book:
        balance = book.balance(account)
        runs = [each for each in book.reservations() if account in each.reserved]
        facts = {
            "site": read.config.site,
            "account": account,
            "status": balance.status,
            "epsilon": {"cap": balance.cap.epsilon, "spent": balance.spent, "remaining": balance.remaining},
            "runs": [{"run": each.run, "committed": each.committed, "left": each.left} for each in runs],
            "kept": list(_open_store(read).runs()),
        }
    if as_json:
        return print_json(facts)
    spent = f"ε {balance.spent:.4g} of {balance.cap.epsilon:g} spent"
    say(f"{read.config.site}: account {account} is {balance.status}; {spent}")
    for each in runs:
        say(f"  {each.run}: {each.committed} charged, {each.left} reserved")
    return None


@click.command(cls=Command)
@site_file
@reason
@options.as_json
def freeze(file: Path, reason: str, as_json: bool) -> None:
    """Stop everything that could leave the site, at once.

    Also what left before is not sent again. `dpfed ledger unfreeze` opens the account again.

    \b
      dpfed site freeze north/site.yaml --reason "an audit"
    """
    read, book = _open(file)
    with book:
        book.freeze(read.config.ledger.account, reason=reason)
        ledger_access.say_done(book, read.config.ledger.account, "froze", as_json)


@click.command(cls=Command)
@click.argument("run")
@site_file
@reason
@options.as_json
def release(run: str, file: Path, reason: str, as_json: bool) -> None:
    """End a run at the site, and return what it never used.

    For a run whose server will not say so itself. What was charged stays charged; what left is not sent again. Where
    `dpfed site serve` holds the run, it is asked to end it, and this waits until it has.

    \b
      dpfed site release hospitals-0a1b2c3d4e5f north/site.yaml --reason "the study was stopped"
    """
    from dpfed.errors import LeaseHeld

    read, book = _open(file)
    store = _open_store(read)
    with book:
        try:
            # A run of raw updates has reserved nothing, and one that has ended may be missing in a restored ledger.
            if book.has_run(run) or not (run in store.runs() or store.has_ended(run)):
                book.release(run, reason=reason)
            store.forget(run, str(book.head()))
        except LeaseHeld:
            store.ask_release(run, reason)
            _wait_for_release(store, run)
        ledger_access.say_done(book, read.config.ledger.account, f"released {run} on", as_json)


def _wait_for_release(store: Any, run: str) -> None:
    """Wait until the process that serves the site has released the run; refuse with what to type if it has not."""
    import time

    from dpfed.errors import LeaseHeld

    until = time.monotonic() + PATIENCE
    while run in store.asked_releases():
        if time.monotonic() > until:
            message = f"`dpfed site serve` was asked to release {run}, and has not done it within {PATIENCE:g} s"
            remedy = "it does so when its training has ended; `dpfed site status` shows it. To have it now, stop serve"
            raise LeaseHeld(f"{message}: {remedy}, and type this again")
        time.sleep(0.1)
    if not store.has_ended(run):
        raise LeaseHeld(f"`dpfed site serve` could not release {run}: its log says why; stop it, and type this again")


def _open(file: Path) -> tuple[SiteFile, Ledger]:
    from dpfed.config.site import SiteFile
    from dpfed.ledger.ledger import Ledger

    read = SiteFile.read(file)
    return read, Ledger(read.ledger_url, create=False)


def _open_store(read: SiteFile) -> Any:
    from dpfed.federated.sent import SentStore, read_key

    return SentStore(read.find(read.config.sent), read_key(read.find(read.config.sent_key)))


@click.group(cls=Group, sections={"Set up": (init, check), "Run": (serve, status), "Stop": (freeze, release)})
def site() -> None:
    """Take part in runs over a network, under a policy and a ledger of your own."""
