"""What the model is told of the tools, word for word: a change of it has to be meant."""

import json
import re
from pathlib import Path

import pytest

from tinyagent import TOOLS, Tool, Workspace

# To accept the words as they are now, in this directory:
#     PYTHONPATH=.. python -c "import test_specs as t; t.GOLDEN.write_text(t.written())"
GOLDEN = Path(__file__).with_name("golden") / "tools.json"


def specs():
    space = Workspace(Path("work"), Path("output"), 1_000, "")
    return [Tool(getattr(space, name)).spec for name in TOOLS]


def written():
    return json.dumps(specs(), indent=2, ensure_ascii=False) + "\n"


def test_the_model_is_told_what_the_golden_file_says():
    assert written() == GOLDEN.read_text()


@pytest.mark.parametrize("spec", specs(), ids=TOOLS)
def test_a_spec_is_one_that_servers_take(spec):
    function, parameters = spec["function"], spec["function"]["parameters"]
    assert spec["type"] == "function" and re.fullmatch(r"[a-z_]{1,64}", function["name"]) and function["description"]
    assert parameters["type"] == "object" and parameters["additionalProperties"] is False
    assert all(about["type"] in ("string", "integer", "boolean") for about in parameters["properties"].values())
    required = [name for name, about in parameters["properties"].items() if "default" not in about]
    assert parameters.get("required", []) == required


@pytest.mark.parametrize("name", TOOLS)
def test_every_tool_has_a_kind_and_says_what_it_does(name):
    kind, saying = TOOLS[name]
    assert kind in ("read", "edit", "execute", "fetch", "other")
    assert re.fullmatch(r"[A-Z][a-z]+ing \{\w+\}.*", saying)
