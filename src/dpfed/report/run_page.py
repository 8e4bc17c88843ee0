"""A run's facts as the sections of a report.

What is long is shortened here and nowhere else: the JSON form of the facts has every site and every round.

>>> rows, note = shortened([(str(number),) for number in range(100)], "rounds")
>>> rows[0], rows[-1], note
(('0',), ('99',), '30 of 100 rounds; the JSON form has all.')
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from dpfed import events as ev
from dpfed.report import charts
from dpfed.report.documents import Alarm, Chart, Document, Section, Table
from dpfed.report.figures import printable, up
from dpfed.report.run_facts import RunFacts, SiteFacts, UnitFacts

MOST_ROWS = 30
SHARED = "This report holds constants of the plan, what was released, and facts of the ledger. It may be shared."
UNPROTECTED = "Nobody is protected in this run: whether this report may be shared is for its owner to say."


def page(facts: RunFacts) -> Document:
    """The report that may be shared."""
    return Document(
        title=f"Privacy report of run {printable(facts.name)}",
        subtitle=SHARED if facts.units else UNPROTECTED,
        alarms=tuple(alarms(facts)),
        sections=tuple(sections(facts)),
        footer=footer(facts),
    )


def sections(facts: RunFacts) -> list[Section]:
    """The sections of a run, those that have something to say."""
    found = [
        Section("The run", pairs=_terms(facts)),
        Section("What is promised", tables=_statements(facts), texts=_promises(facts)),
        Section("What is protected, and from whom", bullets=tuple(map(printable, facts.protection))),
        Section("Rounds", charts=tuple(_charts(facts)), tables=_rounds(facts)),
        Section("Sites, as they were declared" if facts.units else "Sites", tables=(_sites(facts),)),
        Section("Not covered", bullets=tuple(map(printable, facts.not_covered))),
        Section("How to check it", bullets=tuple(_checks(facts))),
    ]
    return [each for each in found if not each.is_empty]


def alarms(facts: RunFacts) -> Iterable[Alarm]:
    """What must be said first."""
    if not facts.is_private:
        yield Alarm("NOT PRIVATE: the noise came from a seed, and whoever knows the seed can take it away.", True)
    if not facts.units and facts.style == "none":
        yield Alarm("NOT PRIVATE: style none protects nobody.", True)
    if facts.simulation:
        yield Alarm(facts.simulation, False)
    for each in facts.units:
        if each.so_far > each.promised:
            yield Alarm(f"OVERSPENT: for one {each.unit} more was spent than the plan promises.", True)
    done = f"{facts.rounds_done} of {facts.rounds} rounds"
    if facts.status == "budget_exhausted":
        yield Alarm(f"Budget exhausted: the run ended after {done}; the next one did not fit what was reserved.", False)
    elif facts.status != "finished":
        yield Alarm(f"Not finished: {done} are done. The promise is that of the whole plan.", False)


def footer(facts: RunFacts) -> str:
    """What made the report."""
    return "Made with " + ", ".join(f"{name} {version}" for name, version in facts.versions.items())


def shortened(rows: Sequence[tuple[str, ...]], what: str) -> tuple[tuple[tuple[str, ...], ...], str]:
    """At most `MOST_ROWS` of the rows, evenly spread with the first and the last, and a note on the others."""
    if len(rows) <= MOST_ROWS:
        return tuple(rows), ""
    kept = sorted({round(place * (len(rows) - 1) / (MOST_ROWS - 1)) for place in range(MOST_ROWS)})
    return tuple(rows[index] for index in kept), f"{len(kept)} of {len(rows):,} {what}; the JSON form has all."


def _terms(facts: RunFacts) -> tuple[tuple[str, str], ...]:
    pairs = [
        ("Name", facts.name),
        ("Style", facts.style),
        ("Status", f"{facts.status.replace('_', ' ')}, {facts.rounds_done} of {facts.rounds} rounds done"),
        ("Plan", facts.summary),
        ("Model", facts.model),
        ("Algorithm", facts.algorithm),
    ]
    return tuple((name, printable(text)) for name, text in pairs if text)


def _statements(facts: RunFacts) -> tuple[Table, ...]:
    if not facts.units:
        return ()
    head = ("For one", "Neighbours", "δ", "Asked: ε", "Whole plan: ε", "Ex post so far: ε", "Holds for")
    rows = tuple(
        (
            each.unit,
            each.adjacency.replace("_", "-"),
            f"{each.delta:g}",
            "–" if each.asked is None else up(each.asked, each.promised),
            up(each.promised, each.promised),
            up(each.so_far, each.promised),
            each.arithmetic,
        )
        for each in facts.units
    )
    note = "The promise is that of the whole plan, also after an early stop. Ex post is what the rounds so far cost."
    units = " Statements for different units are never added up." if len(rows) > 1 else ""
    return (Table(head, rows, numbers=(2, 3, 4, 5), note=note + units),)


def _promises(facts: RunFacts) -> tuple[str, ...]:
    """The sentences; none of a run whose noise anybody could take away."""
    return tuple(each.sentence for each in facts.units) if facts.is_private else ()


def _charts(facts: RunFacts) -> Iterable[Chart]:
    if not facts.by_round:
        return
    for each in facts.units:
        yield Chart(f"ε so far for one {each.unit} at δ = {each.delta:g}, by round", _epsilon_drawing(facts, each))
    for name in _score_names(facts):
        yield Chart(_marked(facts, name) + " by round", _score_drawing(facts, name))


def _epsilon_drawing(facts: RunFacts, of: UnitFacts) -> Callable[[], str]:
    points = [(each.round, each.epsilon[of.unit]) for each in facts.by_round]
    target = of.promised if of.asked is None else of.asked
    return lambda: charts.by_round(points, facts.rounds, target)


def _score_drawing(facts: RunFacts, name: str) -> Callable[[], str]:
    scores = [(each.round, score) for each in facts.by_round for score in each.scores if score.name == name]
    points = [(number, score.value) for number, score in scores if score.value is not None]
    return lambda: charts.by_round(points, facts.rounds)


def _score_names(facts: RunFacts) -> list[str]:
    return list(dict.fromkeys(score.name for each in facts.by_round for score in each.scores))


def _marked(facts: RunFacts, name: str) -> str:
    marks = {score.mark for each in facts.by_round for score in each.scores if score.name == name and score.mark}
    return printable(name) + "".join(f" ({mark})" for mark in sorted(marks))


def _rounds(facts: RunFacts) -> tuple[Table, ...]:
    if not facts.by_round:
        return ()
    names = _score_names(facts)
    head = ("Round", *(f"ε so far, {of.unit}" for of in facts.units), *(_marked(facts, name) for name in names))
    rows = []
    for each in facts.by_round:
        scores = {score.name: _score(score.value) for score in each.scores}
        epsilons = [up(each.epsilon[of.unit], of.promised) for of in facts.units]
        rows.append((str(each.round), *epsilons, *(scores.get(name, "–") for name in names)))
    kept, note = shortened(rows, "rounds")
    return (Table(head, kept, numbers=tuple(range(len(head))), note=note),)


def _score(value: float | None) -> str:
    if value is None:
        return "not finite"
    return f"{value:.4f}" if 0.001 <= abs(value) < 1e5 else f"{value:.4g}"


def _sites(facts: RunFacts) -> Table:
    counted = f"{facts.sites[0].unit.capitalize()}s"
    head = ("Site", counted, "Batch, about", "Steps a round", "Clip norm", "Noise", "ε of the plan")
    groups = [[site] for site in facts.sites] if len(facts.sites) <= MOST_ROWS else _alike(facts.sites)
    if len(groups) > MOST_ROWS:
        groups.sort(key=lambda group: group[0].epsilon or 0.0, reverse=True)
    rows = tuple(_site(group) for group in groups[:MOST_ROWS])
    left = sum(map(len, groups[MOST_ROWS:]))
    note = f"{left:,} more sites, none with a larger ε; the JSON form has all." if left else ""
    return Table(head, rows, numbers=(1, 2, 3, 4, 5, 6), note=note)


def _alike(sites: Iterable[SiteFacts]) -> list[list[SiteFacts]]:
    def constants(site: SiteFacts) -> tuple[float, ...]:
        noise, clip_norm = site.noise_multiplier or 0.0, site.clip_norm or 0.0
        return site.size, site.batch_size, site.steps, clip_norm, noise

    return [list(group) for _, group in groupby(sorted(sites, key=constants), constants)]


def _site(group: Sequence[SiteFacts]) -> tuple[str, ...]:
    one = group[0]
    name = one.name if len(group) == 1 else f"{len(group):,} sites from {one.name} to {group[-1].name}"
    return (
        printable(name),
        f"{one.size:,}",
        f"{one.batch_size:,}",
        f"{one.steps:,}",
        "–" if one.clip_norm is None else f"{one.clip_norm:g}",
        "–" if one.noise_multiplier is None else f"{one.noise_multiplier:.4g}",
        "–" if one.epsilon is None else up(one.epsilon, one.epsilon),
    )


def _checks(facts: RunFacts) -> Iterable[str]:
    for each in facts.units:
        if each.event is not None:
            question = f"--delta {each.delta:g} --adjacency {each.adjacency}"
            yield (
                f"The whole plan charges {ev.from_dict(each.event)} for the {each.unit} that pays most. The JSON form "
                f"of this report has it as event: dpfed epsilon --event FILE {question} computes its ε anew."
            )
    if facts.head:
        yield f"Head of the ledger after the last round: {facts.head}"
        yield (
            "Whoever keeps the ledger runs dpfed ledger verify --head HEAD, which recomputes the chain, every cost and "
            "every balance, and fails if an entry up to this one is not what it was."
        )
    elif facts.rounds_done and facts.units:
        yield (
            "Whoever keeps the ledger runs dpfed ledger verify, which recomputes the chain, every cost and every "
            "balance. Its head is not given: the number in it would tell how many clients a secret cohort had."
        )
