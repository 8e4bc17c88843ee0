"""YAML as people expect it: 1e-5 is a number, ``no`` is a word, 010 keeps its zero, and no key comes twice.

PyYAML reads the language of 2005, where 1e-5 and inf are text, ``no`` is false (bad for a category) and 12:30 is 750.
Reading and writing use the same rules, so what is written is read back.

>>> values, lines = load("delta: 1e-5\\nsmokes: [yes, no]\\nward: 010\\n")
>>> values, lines["smokes",]
({'delta': 1e-05, 'smokes': ['yes', 'no'], 'ward': '010'}, 2)
>>> dump(["1e-5", "true", 0.5])
"['1e-5', 'true', 0.5]"
"""

from __future__ import annotations

import re
from typing import Any

import yaml

Path = tuple[str | int, ...]

_RULES = {
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "int": (r"[-+]?(0|[1-9][0-9]*)", "-+0123456789"),
    "float": (
        r"[-+]?(0|[1-9][0-9]*)\.[0-9]*([eE][-+]?[0-9]+)?|[-+]?\.[0-9]+([eE][-+]?[0-9]+)?"
        r"|[-+]?(0|[1-9][0-9]*)[eE][-+]?[0-9]+|[-+]?\.?(inf|Inf|INF)|\.?(nan|NaN|NAN)",
        "-+0123456789.iInN",
    ),
}


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (PyYAML's own way)

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Return the next node; refuse an alias, because a few lines of them make a file of any size, and a tag.

        What !!timestamp, !!float or !!binary make of a text that is none ends in errors that quote it, or worse.
        """
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        mark: Any = event.start_mark
        if isinstance(event, yaml.AliasEvent):
            problem = "aliases are not read: write the value out"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        if getattr(event, "tag", None) is not None:
            problem = "tags such as !!timestamp are not read: leave them out, and put text in quotes"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        return super().compose_node(parent, index)


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (PyYAML's own way)

    def ignore_aliases(self, data: Any) -> bool:
        """Write equal values out twice instead of pointing from one to the other."""
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    """Represent a text; one with unprintable characters is escaped in quotes, which keeps it on its line."""
    style = None if text.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _represent_text)
for _kind in (_Loader, _Dumper):
    for _tag, (_pattern, _first) in _RULES.items():
        _kind.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first))


def load(text: str) -> tuple[Any, dict[Path, int]]:
    """Return the values of a YAML text, and the line of each by its path of keys; a wrong one raises yaml.YAMLError."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        lines: dict[Path, int] = {}
        if node is None:
            return None, lines
        _collect_lines(node, (), lines)
        return loader.construct_document(node), lines
    finally:
        loader.dispose()


def dump(value: Any) -> str:
    """Return the value as YAML on one line."""
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, allow_unicode=True, width=10**9, sort_keys=False)
    return str(text).removesuffix("\n").removesuffix("\n...")


def _collect_lines(node: yaml.Node, path: Path, lines: dict[Path, int]) -> None:
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            place = (*path, str(key.value))
            if place in lines:
                raise yaml.MarkedYAMLError(problem=f"{key.value} is there twice", problem_mark=key.start_mark)
            lines[place] = key.start_mark.line + 1
            _collect_lines(value, place, lines)
    elif isinstance(node, yaml.SequenceNode):
        for position, value in enumerate(node.value):
            _collect_lines(value, (*path, position), lines)
