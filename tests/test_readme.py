"""What README.md says is what the program does."""

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from scripted import Server

from tinyagent import EXIT_CODES, PINNED, TOOLS, Config

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"```sh\n(.*?)\n```", README, re.S)


def test_the_exit_codes_are_those_of_the_program():
    rows = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|", README, re.M))
    assert rows == {status: str(code) for status, code in EXIT_CODES.items()}


def test_the_tools_are_those_of_the_program():
    assert re.findall(r"^\| `(\w+)\(", README, re.M) == list(TOOLS)


@pytest.mark.parametrize("name", PINNED)
def test_the_pinned_files_are_named(name):
    assert f"`{name}`" in README


def test_the_command_of_the_tests_is_what_has_to_pass():
    assert len(COMMANDS) == 2
    assert COMMANDS[1] in (ROOT / ".ci" / "run").read_text()


def test_options_that_are_named_exist():
    shown = subprocess.run([sys.executable, ROOT / "tinyagent.py", "--help"], capture_output=True, text=True).stdout
    named = set(re.findall(r"--[a-z]\w+", README)) - {"--help"}
    assert named and all(option in shown for option in named)
    assert all(f"--{field.name}" in shown for field in fields(Config) if field.metadata and field.name != "task")


def figure(pattern):
    """A number of the README, which stands where the pattern has its group."""
    return int(re.search(pattern, README)[1].replace(",", ""))


def test_its_figures_are_true(agent, vocabulary):
    lines = len((ROOT / "tinyagent.py").read_text().splitlines())
    assert figure(r"py` \(([\d,]+) lines\)") == round(lines, -2)
    with Server() as server:
        told = agent(server)
        told.load_vocabulary()
        list(told.begin())
        assert figure(r"together some (\d+) tokens") == round(told.size(), -2)


def test_it_is_short():
    assert 80 <= len(README.splitlines()) <= 160
