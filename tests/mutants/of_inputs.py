"""Faults in how inputs are read and refused: data that are shown, garbage that is used, code that is run."""

from __future__ import annotations

from mutants.mutant import Mutant

INPUTS = (
    Mutant(
        "any file is taken for a configuration",
        "config/reading.py",
        "    require_configuration(text, file)\n",
        "",
        ("tests/config/test_strangers.py::test_a_file_of_another_kind_is_named_and_nothing_of_it_is_shown",),
    ),
    Mutant(
        "values of any length are quoted",
        "config/fields.py",
        'if isinstance(value, str) and (len(value) > QUOTED or "://" in value):',
        "if False:",
        ("tests/config/test_fields.py::test_a_refusal_shows_no_list_no_long_text_and_no_address",),
    ),
    Mutant(
        "the text of an exception is shown",
        "cli/faults.py",
        'what = f"stopped by {place_of(error)},',
        'what = f"stopped by {error},',
        ("tests/cli/test_faults.py::test_a_defect_is_no_refusal_and_its_text_is_not_shown",),
    ),
    Mutant(
        "columns of a table are listed",
        "data/tables.py",
        'else f"its first {self.place} must name the columns"',
        'else ", ".join(self.columns)',
        (
            "tests/data/test_tables.py::"
            "test_a_refusal_shows_no_cell_and_no_name_of_a_column_but_one_like_what_was_asked_for",
        ),
    ),
    Mutant(
        "damaged records of a run are read at its end only",
        "runs/directory.py",
        "        self._records(ROUNDS, round_files.PUBLIC)\n        self._records(OWNER_ROUNDS, round_files.OWNER)\n",
        "",
        ("tests/cli/test_storing.py::test_garbage_in_a_file_of_a_run_is_noticed_before_a_round_is_run",),
    ),
    Mutant(
        "code is imported where none may be",
        "cli/plan.py",
        'is_code = no_code and "data.source" in settings.code',
        "is_code = False",
        ("tests/cli/test_plan.py::test_without_code_no_module_of_the_file_is_imported_and_each_is_named",),
    ),
    Mutant(
        "the words of a model of one's own",
        "references.py",
        "    return str(error) if is_of_torch or",
        "    return str(error) if True or",
        ("tests/test_references.py::test_what_torch_says_of_made_up_records_is_shown_and_what_other_code_says_is_not",),
    ),
)
