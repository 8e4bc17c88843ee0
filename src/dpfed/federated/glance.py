"""What a plan needs to know of the data, read as sparingly as it can be.

A plan follows from declared names and sizes. Where the file declares them, a table's first line is all that is read:
whether its columns are those that the file names. Cells are checked when the run begins, before anything is spent.

>>> from dpfed.config.run import RunConfig
>>> _ = Path("ward.csv").write_text("age,y\\n61,1\\n")
>>> config = RunConfig.parse('''
... name: ward
... data: {source: ward.csv, label: y, classes: [0, 1], feature_bounds: {age: [0, 100]}, sizes: 50,
...        partition: {kind: iid, clients: 1}}
... model: {kind: logistic}
... rounds: 5
... local: {steps: 10, batch_size: 14, learning_rate: 0.5}
... privacy: {style: sample, record: {epsilon: 4, delta: 1e-5, clip_norm: 1}}
... ''')
>>> glance(config, ".").sizes
{'1': 50}
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from dpfed.config import data as blocks
from dpfed.config.run import RunConfig
from dpfed.data.sources import is_table, read_column_names
from dpfed.data.tables import TextTable, read_column
from dpfed.federated.bounds import list_released, refuse_unbounded, refuse_unbounded_label, require_bounds
from dpfed.federated.data import DataFacts, declare_columns, prepare, require_sites
from dpfed.federated.planning import read_declared
from dpfed.plan.rules import SITES


def glance(config: RunConfig, directory: str | Path) -> DataFacts:
    """Return what a plan needs to know: from the file and the table's first line where they say it, else from all."""
    refuse_unbounded_label(config)
    if is_declared(config.data):
        check_columns(config, directory)
        return read_declared(config)
    if is_counted(config.data):
        check_columns(config, directory)
        return _count_sites(config.data, directory)
    prepared = prepare(config.data, directory)
    require_bounds(config, prepared)
    return prepared.facts


def is_declared(data: blocks.Data) -> bool:
    """Return whether clients and sizes are declared, so that no record of the table enters the plan."""
    is_named = data.clients is not None and data.declared_sizes is not None
    # At how many sites a person is must not exceed what the file says: that is in the records.
    return is_named and is_table(data.source) and data.person_column is None


def is_counted(data: blocks.Data) -> bool:
    """Return whether the plan needs true counts of sites, which are public, and nothing else of a CSV file."""
    is_csv = is_table(data.source) and not data.source.lower().endswith(".parquet")
    return is_csv and data.sizes_are_public and data.person_column is None and data.dealing == SITES


def _count_sites(data: blocks.Data, directory: str | Path) -> DataFacts:
    """Return the public sizes of the sites: what is left of each after the records that are held out."""
    counts = Counter(read_column(Path(directory) / data.source, str(getattr(data.partition, "column", ""))))
    require_sites(counts, data)
    sizes = {name: counts[name] - round(data.test_fraction * counts[name]) for name in sorted(counts)}
    return DataFacts(sizes, data.shape, tuple(data.classes), dealing=data.dealing)


def check_columns(config: RunConfig, directory: str | Path) -> None:
    """Refuse a table whose first line does not have the columns that the file names, or one without public bounds."""
    data = config.data
    names = read_column_names(Path(directory) / data.source)
    table = TextTable(Path(data.source).name, dict.fromkeys(names, ()), ())
    declared, site = declare_columns(data), getattr(data.partition, "column", None)
    for column in filter(None, [data.label, site, *declared.columns, *data.ignore]):
        table.require(column)
    used = [name for name in names if name not in {data.label, site, *data.ignore}]
    features = [name for column in used for name in declared.name_features(column)]
    refuse_unbounded(data, features, list_released(config))
