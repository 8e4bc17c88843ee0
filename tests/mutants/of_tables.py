"""Mutants of tables: what is declared of columns and what is found in them, and who is held out."""

from __future__ import annotations

from mutants.mutant import Mutant

COUNTS = "tests/mechanisms/test_counts.py::test_"
DECLARED = "tests/data/test_declared.py::test_"
PARTITION = "tests/data/test_partition.py::test_"
PLAIN = "tests/data/test_plain.py::test_"
SCALING = "tests/data/test_scaling.py::test_"
TEXTS = "tests/data/test_text_files.py::test_"
READ = "tests/data/test_tables.py::test_"

TABLES = (
    Mutant(
        "hashes that hold out without a key",
        "data/partition.py",
        "digest_size=8, key=key, person=purpose",
        "digest_size=8, person=purpose",
        (PARTITION + "hashes_depend_on_the_content_the_seed_and_the_purpose",),
    ),
    Mutant(
        "hashes that hold out and deal alike",
        "data/partition.py",
        "digest_size=8, key=key, person=purpose",
        "digest_size=8, key=key",
        (PARTITION + "hashes_depend_on_the_content_the_seed_and_the_purpose",),
    ),
    Mutant(
        "features of a table beyond their bounds",
        "data/scaling.py",
        "np.clip((values - low) / width * 2 - 1, -1, 1)",
        "(values - low) / width * 2 - 1",
        (SCALING + "bounds_map_their_ends_to_one_and_clip_what_is_outside",),
    ),
    Mutant(
        "bounds of a column that are those of its records",
        "data/scaling.py",
        "_map_to_unit(scaled[:, place], low, high)",
        "_map_to_unit(scaled[:, place], scaled[:, place].min(), scaled[:, place].max())",
        (SCALING + "a_record_more_does_not_change_how_another_is_scaled",),
    ),
    Mutant(
        "missing numbers that are the mean of the others",
        "data/tables.py",
        "np.where(np.isnan(values), declared.number(column), values)",
        "np.where(np.isnan(values), np.nanmean(values), values)",
        (READ + "missing_cells_are_filled_by_what_is_declared",),
    ),
    Mutant(
        "missing texts that are the first category",
        "data/tables.py",
        "self.columns[column], position.get(str(fill), _ABSENT)",
        "self.columns[column], 0",
        (READ + "missing_cells_are_filled_by_what_is_declared",),
    ),
    Mutant(
        "a fill that is none of the categories",
        "data/declared.py",
        "            if str(self.fill[column]) not in known:\n",
        "            if not known:\n",
        (DECLARED + "what_cannot_stand_for_a_cell_is_refused",),
    ),
    Mutant(
        "a text outside the declared list that counts as missing",
        "data/tables.py",
        "position.get(cell, absent if is_missing(cell) else _UNKNOWN)",
        "position.get(cell, absent)",
        (READ + "a_category_that_was_not_declared_is_refused_and_not_shown",),
    ),
    Mutant(
        "a declared category that counts as missing",
        "data/tables.py",
        "        absent = {cell for cell in set(cells) if is_missing(cell) and cell not in known}\n",
        "        absent = {cell for cell in set(cells) if is_missing(cell)}\n",
        (READ + "a_declared_category_that_is_called_none_is_not_missing",),
    ),
    Mutant(
        "a record that counts twice in released figures",
        "mechanisms/counts.py",
        "    return np.bincount(inside, minlength=size).astype(np.int64)\n",
        "    return 2 * np.bincount(inside, minlength=size).astype(np.int64)\n",
        (COUNTS + "a_record_more_moves_one_count_by_one",),
    ),
    Mutant(
        "plain numbers with more digits than a float holds",
        "data/plain.py",
        " or count.max() > MOST_DIGITS:\n",
        ":\n",
        (PLAIN + "any_other_cell_leaves_its_column_to_the_long_way",),
    ),
    Mutant(
        "lines without content that are records of a plain table",
        "data/plain.py",
        "    return bool(lengths.min() > 0 and lengths.max() <= csv.field_size_limit())\n",
        "    return bool(lengths.max() <= csv.field_size_limit())\n",
        (PLAIN + "anything_but_a_plain_table_is_left_to_the_long_way",),
    ),
    Mutant(
        "bounds of no width, which tell by an error whether a value is there",
        "data/scaling.py",
        "        if not np.all((width > 0) & (width < np.inf)):\n",
        "        if not np.all(width < np.inf):\n",
        (SCALING + "bounds_that_would_make_nan_of_one_value_are_refused_whatever_the_values_are",),
    ),
    Mutant(
        "a stray byte of one record that decides how all are read",
        "data/text_files.py",
        "for line in content.splitlines(keepends=True))",
        "for line in [content])",
        (TEXTS + "how_a_record_is_read_does_not_depend_on_the_bytes_of_another",),
    ),
)
