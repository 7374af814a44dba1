"""The style as code: how tinyagent.py is built."""

import ast
import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import tinyagent
from tinyagent import EVENTS, Opened, clean, read_journal

TEXT = Path(tinyagent.__file__).read_text(encoding="utf-8")
LINES = TEXT.splitlines()
TREE = ast.parse(TEXT)
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITION = (*FUNCTION, ast.ClassDef)
BANNER = re.compile(r"# -{20,} (\d+) (\w.*)")
FLOORS = {int(found[1]): line for line, text in enumerate(LINES, 1) if (found := BANNER.fullmatch(text))}


def nodes(kind, tree=TREE):
    return [node for node in ast.walk(tree) if isinstance(node, kind)]


def names(tree, context):
    return [node for node in nodes(ast.Name, tree) if isinstance(node.ctx, context)]


def bound_by(statement):
    """The names that a statement of the module binds in it."""
    if isinstance(statement, DEFINITION):
        return [statement.name]
    imported = [alias for node in nodes((ast.Import, ast.ImportFrom), statement) for alias in node.names]
    return [(a.asname or a.name).split(".")[0] for a in imported] + [n.id for n in names(statement, ast.Store)]


def used_before_bound(tree):
    """What definitions use that stands further down in the module: pairs of a definition and a name."""
    bound = {name: statement.lineno for statement in reversed(tree.body) for name in bound_by(statement)}
    for definition in (statement for statement in tree.body if isinstance(statement, DEFINITION)):
        local = {node.arg for node in nodes(ast.arg, definition)} | {n.id for n in names(definition, ast.Store)}
        for name in {node.id for node in names(definition, ast.Load)} - local:
            if bound.get(name, 0) > definition.end_lineno:
                yield definition.name, name


def floor(node):
    """The number of the floor on which a node stands; -1 above them all."""
    return max((number for number, line in FLOORS.items() if line <= node.lineno), default=-1)


def test_the_floors_stand_in_order():
    assert list(FLOORS) == list(range(10))
    assert list(FLOORS.values()) == sorted(FLOORS.values())


def test_nothing_uses_what_stands_further_down():
    assert list(used_before_bound(TREE)) == []
    wrong = ast.parse("def f(): return g() + LATE\ndef g(): return f()\nLATE = 1")
    assert sorted(used_before_bound(wrong)) == [("f", "LATE"), ("f", "g")]  # it would be found


def test_only_front_ends_print_or_ask():
    speaking = [name for name in names(TREE, ast.Load) if name.id in ("print", "input")]
    streams = [node for node in nodes(ast.Attribute) if node.attr in ("stdin", "stdout", "stderr")]
    streams = [node for node in streams if isinstance(node.value, ast.Name) and node.value.id == "sys"]
    assert speaking and streams
    assert [f"line {node.lineno}" for node in speaking + streams if floor(node) < 7] == []


def test_two_packages_are_needed_and_no_more():
    modules = [alias.name for node in nodes(ast.Import) for alias in node.names]
    modules += [node.module for node in nodes(ast.ImportFrom)]
    foreign = {module.split(".")[0] for module in modules} - sys.stdlib_module_names
    assert foreign <= {"openai", "pydantic", "tiktoken"}  # pydantic comes with openai


def test_the_packages_are_imported_when_they_are_needed():
    at_once = {
        name
        for statement in TREE.body
        if not isinstance(statement, (*DEFINITION, ast.If))
        for name in bound_by(statement)
    }
    assert at_once.isdisjoint({"openai", "pydantic", "tiktoken"})


def test_no_line_is_too_long():
    assert [f"line {number}" for number, line in enumerate(LINES, 1) if len(line) > 120] == []


def length(function):
    """The lines of a function, blank ones not counted."""
    return sum(bool(line.strip()) for line in LINES[function.lineno - 1 : function.end_lineno])


def test_what_others_call_has_a_docstring():
    public = [node for node in nodes(DEFINITION) if 3 <= floor(node) <= 6 and not node.name.startswith("_")]
    undocumented = [node.name for node in public if length(node) > 3 and not ast.get_docstring(node)]
    assert len(public) > 30
    assert undocumented == []


@pytest.mark.parametrize("kind", EVENTS)
def test_an_event_is_the_same_when_it_is_read_again(kind, tmp_path):
    odd = "é \u2028 \ud800\r\n\0"
    values = {
        str: odd,
        int: 7,
        float: 0.5,
        bool: True,
        object: 7,
    }
    counts = {"prompt_tokens": 1, "completion_tokens": 0.5}
    values |= {"message": {"role": "assistant", "content": odd, "list": [1, None]}, "faults": {"a": odd}}
    values |= {"usage": counts, "total": counts}
    happened = EVENTS[kind](**{f.name: values.get(f.name, values.get(f.type)) for f in fields(EVENTS[kind])})
    opened = Opened("id", "directory", "model", "url", "system")
    lines = [opened.to_json(), happened.to_json()]
    (tmp_path / "journal").write_bytes("\n".join(lines).encode("utf-8", "backslashreplace"))
    assert read_journal(tmp_path / "journal") == [opened, EVENTS[kind](**clean(vars(happened)))]
    assert happened.type == kind and "\n" not in happened.to_json()
    with pytest.raises(AttributeError):
        happened.time = 0.0
