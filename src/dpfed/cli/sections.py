"""Click commands whose help comes in sections, and whose refusals are one line on stderr."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import click

from dpfed.cli import faults
from dpfed.errors import InvalidArgument, PrivacyError

OTHER = "Other"


class Option(click.Option):
    """An option under a heading of the help page."""

    def __init__(self, *args: Any, section: str = OTHER, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section


class Command(click.Command):
    """A command that lists its options by section, in the order in which the sections first appear."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, section by section."""
        rows: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            if row is not None and isinstance(parameter, click.Option):  # arguments stand in the usage line
                rows.setdefault(getattr(parameter, "section", OTHER), []).append(row)
        _write(formatter, sorted(rows.items(), key=lambda item: item[0] == OTHER))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a refusal names the option that the user typed instead of the Python argument."""
        try:
            return super().invoke(ctx)
        except InvalidArgument as error:
            options = {parameter.name: max(parameter.opts, key=len) for parameter in self.params}
            option = options.get(error.argument.removeprefix("target_"))
            raise click.UsageError(_name_option(str(error), error.argument, option), ctx) from None


class Group(click.Group):
    """A group that lists its commands by section and answers every refusal with one line and exit code 2."""

    command_class = Command

    def __init__(self, *args: Any, sections: dict[str, tuple[click.Command, ...]] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sections = sections or {}
        for commands in self.sections.values():
            for command in commands:
                self.add_command(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, section by section."""
        sections = self.sections or {"Commands": tuple(self.commands.values())}
        _write(formatter, ((title, [_row(each) for each in commands]) for title, commands in sections.items()))

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run and exit, as click does, but print every refusal as one line."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        _never_fail_on_greek()
        try:
            code = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except click.exceptions.NoArgsIsHelpError as help_page:
            click.echo(help_page.format_message())
            code = 0
        except click.ClickException as error:
            _refuse(error.format_message())
        except PrivacyError as error:
            _refuse(str(error))
        except click.Abort:
            _refuse("interrupted", code=130)
        except Exception as error:
            click.echo("".join(faults.traceback_lines(error)), err=True, nl=False)
            _refuse(faults.describe_fault(error), faults.REFUSED if faults.is_system_error(error) else faults.FAULT)
        sys.exit(code if isinstance(code, int) else 0)


def _row(command: click.Command) -> tuple[str, str]:
    return command.name or "", command.get_short_help_str(100)


def _name_option(message: str, argument: str, option: str | None) -> str:
    if option is None:
        return message
    return message.replace(argument, option, 1) if message.startswith(argument) else f"{option}: {message}"


def _refuse(message: str, code: int = 2) -> NoReturn:
    say_refusal(message)
    sys.exit(code)


def say_refusal(message: str) -> None:
    """Print one line on stderr, wrapped between words on a terminal; control characters are replaced by �."""
    sentences = [" ".join(line.split()) for line in message.splitlines() if line.strip()]
    line = "".join(letter if letter.isprintable() else "�" for letter in "; ".join(sentences))
    click.echo(_wrap(f"dpfed: {line}") if sys.stderr.isatty() else f"dpfed: {line}", err=True)


def _wrap(line: str) -> str:
    width = shutil.get_terminal_size().columns
    return textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)


def _never_fail_on_greek() -> None:
    """Print a question mark, not a traceback, on a terminal that cannot show ε."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _write(formatter: click.HelpFormatter, sections: Iterable[tuple[str, list[tuple[str, str]]]]) -> None:
    for title, rows in sections:
        with formatter.section(title):
            formatter.write_dl(rows)
