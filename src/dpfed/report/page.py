"""The shareable report of a run: its facts as sections.

Long tables are shortened here and nowhere else: the JSON form of the facts has every site and every round.

>>> rows, note = shorten([(str(number),) for number in range(100)], "rounds")
>>> rows[0], rows[-1], note
(('0',), ('99',), '30 of 100 rounds; the JSON form has all.')
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from dpfed import events as ev
from dpfed.report import charts
from dpfed.report.documents import Alarm, Chart, Document, DocumentTable, Section
from dpfed.report.facts import FigureFacts, RunFacts, SiteFacts, UnitFacts
from dpfed.report.figures import format_epsilon, replace_controls

MOST_ROWS = 30
NOT_AUDITED = "not audited"
SHARED = "This report holds constants of the plan, released values and facts of the ledger. It may be shared."
UNPROTECTED = "Nobody is protected in this run: its owner decides whether to share this report."


def make_page(facts: RunFacts) -> Document:
    """Return the report that may be shared."""
    return Document(
        title=f"Privacy report of run {replace_controls(facts.name)}",
        subtitle=SHARED if facts.units else UNPROTECTED,
        alarms=tuple(make_alarms(facts)),
        sections=tuple(make_sections(facts)),
        footer=make_footer(facts),
    )


def make_sections(facts: RunFacts) -> list[Section]:
    """Return the sections of a report that are not empty; a new section is added here."""
    found = [
        Section("The run", pairs=_describe_run(facts)),
        Section("What is promised", tables=_make_statements(facts), texts=_describe_promises(facts)),
        Section("What is protected, and from whom", bullets=tuple(map(replace_controls, facts.protection))),
        Section("What audits found", bullets=_list_audits(facts)),
        Section("Released figures", tables=_make_figures(facts), texts=_describe_figures(facts)),
        Section("Rounds", charts=tuple(_make_charts(facts)), tables=_make_rounds(facts)),
        Section("Sites, as they were declared" if facts.units else "Sites", tables=(_make_sites(facts),)),
        Section("Not covered", bullets=tuple(map(replace_controls, facts.not_covered))),
        Section("How to check it", bullets=tuple(_describe_checks(facts))),
    ]
    return [each for each in found if not each.is_empty]


def make_alarms(facts: RunFacts) -> Iterable[Alarm]:
    """Yield the warnings that come first."""
    if not facts.is_private:
        yield Alarm("NOT PRIVATE: the noise came from a seed, and whoever knows the seed can subtract it.", True)
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
    elif facts.status == "stopped":
        yield Alarm(f"Stopped early, after {done}: a released figure got no better. The promise is the plan's.", False)
    elif facts.status != "finished":
        yield Alarm(f"Not finished: {done} are done. The promise is that of the whole plan.", False)


def make_footer(facts: RunFacts) -> str:
    """Return the versions that made the report, as one line."""
    return "Made with " + ", ".join(f"{name} {version}" for name, version in facts.versions.items())


def shorten(rows: Sequence[tuple[str, ...]], what: str) -> tuple[tuple[tuple[str, ...], ...], str]:
    """Return at most `MOST_ROWS` of the rows, evenly spread with the first and the last, and a note on the others."""
    if len(rows) <= MOST_ROWS:
        return tuple(rows), ""
    kept = sorted({round(place * (len(rows) - 1) / (MOST_ROWS - 1)) for place in range(MOST_ROWS)})
    return tuple(rows[index] for index in kept), f"{len(kept)} of {len(rows):,} {what}; the JSON form has all."


def _describe_run(facts: RunFacts) -> tuple[tuple[str, str], ...]:
    pairs = [
        ("Name", facts.name),
        ("Style", facts.style),
        ("Status", f"{facts.status.replace('_', ' ')}, {facts.rounds_done} of {facts.rounds} rounds done"),
        ("Plan", facts.summary),
        ("Model", facts.model),
        ("Algorithm", facts.algorithm),
    ]
    return tuple((name, replace_controls(text)) for name, text in pairs if text)


def _make_statements(facts: RunFacts) -> tuple[DocumentTable, ...]:
    if not facts.units:
        return ()
    head = ("For one", "Neighbours", "δ", "Asked: ε", "Whole plan: ε", "Ex post so far: ε", "Holds for")
    rows = tuple(
        (
            each.unit,
            each.adjacency.replace("_", "-"),
            f"{each.delta:g}",
            "–" if each.asked is None else format_epsilon(each.asked, each.promised),
            format_epsilon(each.promised, each.promised),
            format_epsilon(each.so_far, each.promised),
            each.arithmetic,
        )
        for each in facts.units
    )
    note = "The promise is that of the whole plan, also after an early stop. Ex post is what the rounds so far cost."
    units = " Statements for different units are never added up." if len(rows) > 1 else ""
    return (DocumentTable(head, rows, numbers=(2, 3, 4, 5), note=note + units),)


def _describe_promises(facts: RunFacts) -> tuple[str, ...]:
    """Return a sentence for each promise; none for a run whose noise can be subtracted."""
    shuffled = (facts.shuffled,) if facts.shuffled else ()
    return (*(each.sentence for each in facts.units), *shuffled) if facts.is_private else ()


def _list_audits(facts: RunFacts) -> tuple[str, ...]:
    """Return the lines of the run's audits; that there were none, where there is something to audit."""
    return tuple(map(replace_controls, facts.audits)) or ((NOT_AUDITED,) if facts.units else ())


def _make_charts(facts: RunFacts) -> Iterable[Chart]:
    if not facts.by_round:
        return
    for each in facts.units:
        yield Chart(f"ε so far for one {each.unit} at δ = {each.delta:g}, by round", _draw_epsilon(facts, each))
    for name in _list_scores(facts):
        yield Chart(_add_mark(facts, name) + " by round", _draw_score(facts, name))


def _draw_epsilon(facts: RunFacts, of: UnitFacts) -> Callable[[], str]:
    points = [(each.round, each.epsilon[of.unit]) for each in facts.by_round]
    target = of.promised if of.asked is None else of.asked
    return lambda: charts.draw_by_round(points, facts.rounds, target)


def _draw_score(facts: RunFacts, name: str) -> Callable[[], str]:
    scores = [(each.round, score) for each in facts.by_round for score in each.scores if score.name == name]
    points = [(number, score.value) for number, score in scores if score.value is not None]
    return lambda: charts.draw_by_round(points, facts.rounds)


def _list_scores(facts: RunFacts) -> list[str]:
    return list(dict.fromkeys(score.name for each in facts.by_round for score in each.scores))


def _add_mark(facts: RunFacts, name: str) -> str:
    marks = {score.mark for each in facts.by_round for score in each.scores if score.name == name and score.mark}
    return replace_controls(name) + "".join(f" ({mark})" for mark in sorted(marks))


def _make_rounds(facts: RunFacts) -> tuple[DocumentTable, ...]:
    if not facts.by_round:
        return ()
    names = _list_scores(facts)
    head = ("Round", *(f"ε so far, {of.unit}" for of in facts.units), *(_add_mark(facts, name) for name in names))
    rows = []
    for each in facts.by_round:
        scores = {score.name: _format_score(score.value) for score in each.scores}
        epsilons = [format_epsilon(each.epsilon[of.unit], of.promised) for of in facts.units]
        rows.append((str(each.round), *epsilons, *(scores.get(name, "–") for name in names)))
    kept, note = shorten(rows, "rounds")
    return (DocumentTable(head, kept, numbers=tuple(range(len(head))), note=note),)


def _make_figures(facts: RunFacts) -> tuple[DocumentTable, ...]:
    rows = tuple(
        (str(each.round), replace_controls(figure.name.replace("_", " ")), *_format_figure(figure))
        for each in facts.by_round
        for figure in each.released
    )
    if not rows:
        return ()
    head = ("After round", "Figure", "Value", "Interval at 95 %")
    kept, note = shorten(rows, "figures")
    return (DocumentTable(head, kept, numbers=(0, 2), note=note),)


def _format_figure(figure: FigureFacts) -> tuple[str, str]:
    if figure.value is None or (figure.low <= 0 and figure.high >= 1):
        return "useless", "0 to 1: noise is larger than what was counted"
    return f"{figure.value:.3f}", f"{figure.low:.3f} to {figure.high:.3f}"


def _describe_figures(facts: RunFacts) -> tuple[str, ...]:
    """Return what the released figures are and are not; nothing where none were planned."""
    if not facts.measured:
        return ()
    what = replace_controls(facts.measured[0].upper() + facts.measured[1:])
    has = "Intervals include the noise and the chance of who was held out; the promise above includes these figures."
    return (f"{what}.", has)


def _format_score(value: float | None) -> str:
    if value is None:
        return "not finite"
    return f"{value:.4f}" if 0.001 <= abs(value) < 1e5 else f"{value:.4g}"


def _make_sites(facts: RunFacts) -> DocumentTable:
    counted = f"{facts.sites[0].unit.capitalize()}s"
    head = ("Site", counted, "Batch, about", "Steps a round", "Clip norm", "Noise", "ε of the plan")
    groups = [[site] for site in facts.sites] if len(facts.sites) <= MOST_ROWS else _group_alike(facts.sites)
    if len(groups) > MOST_ROWS:
        groups.sort(key=lambda group: group[0].epsilon or 0.0, reverse=True)
    rows = tuple(_make_site(group) for group in groups[:MOST_ROWS])
    left = sum(map(len, groups[MOST_ROWS:]))
    note = f"{left:,} more sites, none with a larger ε; the JSON form has all." if left else ""
    return DocumentTable(head, rows, numbers=(1, 2, 3, 4, 5, 6), note=note)


def _group_alike(sites: Iterable[SiteFacts]) -> list[list[SiteFacts]]:
    def constants(site: SiteFacts) -> tuple[float, ...]:
        noise, clip_norm = site.noise_multiplier or 0.0, site.clip_norm or 0.0
        return site.size, site.batch_size, site.steps, clip_norm, noise

    return [list(group) for _, group in groupby(sorted(sites, key=constants), constants)]


def _make_site(group: Sequence[SiteFacts]) -> tuple[str, ...]:
    one = group[0]
    name = one.name if len(group) == 1 else f"{len(group):,} sites from {one.name} to {group[-1].name}"
    return (
        replace_controls(name),
        f"{one.size:,}",
        f"{one.batch_size:,}",
        f"{one.steps:,}",
        "–" if one.clip_norm is None else f"{one.clip_norm:g}",
        "–" if one.noise_multiplier is None else f"{one.noise_multiplier:.4g}",
        "–" if one.epsilon is None else format_epsilon(one.epsilon, one.epsilon),
    )


def _describe_checks(facts: RunFacts) -> Iterable[str]:
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
