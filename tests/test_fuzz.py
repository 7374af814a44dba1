"""Whatever a server streams, a journal holds, a model calls or a user does: no traceback, no request that breaks the
rules, nothing run from half a call. With FUZZ_SECONDS=1800 each test goes on for so long, with other examples."""

import json
import os
import re
import tempfile
import time
from contextlib import suppress
from functools import wraps
from pathlib import Path

import pytest
from conftest import of, turn
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from scripted import RESPONSES, Pause, Server, Usage, calls, chunk, error, event, happened, raw, response, say

from tinyagent import (
    EVENTS,
    Agent,
    Config,
    Model,
    Result,
    Session,
    ToolReturned,
    outline,
    read_journal,
    replay,
)

SECONDS = float(os.environ.get("FUZZ_SECONDS", 0))
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def ok(request):
    """A reply in the words of the API that was asked."""
    return (response if request.path == RESPONSES else say)(f"ok {len(request.body)}")


OK = [ok] * 60


def fuzz(examples):
    """Runs a test with so many examples, always the same; or, when asked for, with others until the time is over."""
    often = settings(
        max_examples=300 if SECONDS else examples,
        deadline=None,
        derandomize=not SECONDS,
        database=None,
        suppress_health_check=list(HealthCheck),
    )

    def decorate(test):
        test = often(test)

        @wraps(test)
        def repeated(*args, **kwargs):
            until = time.monotonic() + SECONDS
            test(*args, **kwargs)
            while time.monotonic() < until:
                test(*args, **kwargs)

        return repeated

    return decorate


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """Retries come at once."""
    monkeypatch.setattr("random.uniform", lambda low, high: 0.0)


class Place:
    """A directory to work in and a journal, both gone afterwards, and agents that act there one after the other."""

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="fuzz-")
        self.work, self.journal = Path(self.folder.name, "work"), Path(self.folder.name, "state/x/sessions/s.jsonl")
        self.work.mkdir()
        self.journal.parent.mkdir(parents=True)
        return self

    def __exit__(self, *_):
        self.folder.cleanup()

    def agent(self, server, **more):
        config = Config(base_url=server.url, model="scripted", **more)
        session = Session(self.journal)
        return Agent(config, self.work, session, Model(config, session.learned).chat)


def lives(agent, text="go on") -> list:
    """The events of a turn, which ended as turns should."""
    events = turn(agent, text)
    assert isinstance(events[-1], Result) and "fault of tinyagent" not in events[-1].text, events[-1]
    return events


# ---------------------------------------------------------------------------------------------------- any byte stream

LONG = "".join(f"{number} and " for number in range(40))
WRITE = ("write_to_file", {"path": "ran.txt", "content": LONG})
THOUGHTS = [event(chunk({"reasoning_content": text})) for text in ("I ", "think", " so")]


def streams(reply):
    """The parts of a reply as bytes."""
    parts = (part for part in reply.parts if not isinstance(part, Pause))
    return [happened(part.last) if isinstance(part, Usage) else part for part in parts]


VALID = [
    streams(say("A text with some words in it.", usage=False, pieces=6)),
    [*THOUGHTS, *streams(calls(WRITE, usage=False))],
    streams(calls(WRITE, ("list_files", {}), ("read_from_file", {"path": "ran.txt"}), text="So.", usage=False)),
    streams(response("A text.", [WRITE], usage=False)),
    streams(response("A text.", usage=False)),
]
COUNTED = event({**chunk({}), "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 9}})


def places(value, path=()):
    """The paths to all that is in a JSON value."""
    yield path
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(part, (*path, key))


def changed(data, draw):
    """JSON in which something is missing or another thing."""
    path = draw(st.sampled_from([path for path in places(data) if path] or [()]))
    if not path:
        return draw(ANYTHING)
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    if draw(st.booleans()):
        del inner[path[-1]]
    else:
        inner[path[-1]] = draw(ANYTHING)
    return data


def damaged_event(part, draw):
    """An event of a stream in which a field is missing or another, or a byte is."""
    head, mark, tail = part.partition(b"data: ")
    with suppress(ValueError):
        if mark and draw(st.integers(0, 3)):
            return head + mark + json.dumps(changed(json.loads(tail), draw)).encode() + b"\n\n"
    place = draw(st.integers(0, max(0, len(part) - 1)))
    return part[:place] + draw(st.binary(max_size=3)) + part[place + draw(st.integers(0, 2)) :]


@st.composite
def broken(draw):
    """The bytes of a stream that something happened to, in pieces, and whether it was only cut."""
    parts = list(draw(st.sampled_from(VALID)))
    if draw(st.booleans()):
        parts.insert(draw(st.integers(0, len(parts))), COUNTED)
    if draw(st.booleans()):
        whole = b"".join(parts)
        return [whole[: draw(st.integers(0, len(whole) - 1))]], True
    for _ in range(draw(st.integers(1, 4))):
        first, second = (draw(st.integers(0, len(parts) - 1)) for _ in range(2))
        match draw(st.sampled_from(["damage", "damage", "drop", "swap", "double"])):
            case "damage":
                parts[first] = damaged_event(parts[first], draw)
            case "drop" if len(parts) > 1:
                del parts[first]
            case "swap":
                parts[first], parts[second] = parts[second], parts[first]
            case "double":
                parts.insert(second, parts[first])
    return parts, False


@fuzz(60)
@given(st.lists(broken(), min_size=1, max_size=3), st.sampled_from(["auto", "responses"]))
def test_any_stream(streams, api):
    with Place() as place, Server(*[raw(*parts) for parts, _ in streams], *OK, prefix=False) as server:
        agent = place.agent(server, stall_seconds="5,5", api=api)
        lives(agent)
        if all(cut for _, cut in streams):
            assert not (place.work / "ran.txt").exists() or (place.work / "ran.txt").read_text() == LONG
        assert len(server.requests) <= 40
        lives(agent)
        lives(place.agent(server), "and now?")
        server.breaches = [
            text for text in server.breaches if "reasoning" not in text
        ]  # sealed: we cannot look into it


# --------------------------------------------------------------------------------------------------------- any journal

TOLD = ("run_shell_command", {"command": "echo one"})
READ = ("read_from_file", {"path": "a.txt"})


@pytest.fixture(scope="module")
def journal():
    """The lines of a journal in which there is everything."""
    too_long = error(400, {"error": {"message": "too long", "code": "context_length_exceeded"}})
    script = [calls(TOLD, READ), say("One."), calls(("write_to_file", {"path": "a.txt", "content": "x"})), say("Two.")]
    with Place() as place, Server(*script, too_long, say("A summary."), *OK, prefix=False) as server:
        agent = place.agent(server)
        for text in ("first", "second", "third", "!echo mine", "/undo", "/redo", "/undo", "/model other", "fourth"):
            lives(agent, text)
        agent.hints = iter([["a hint"], *[[]] * 10_000]).__next__
        lives(agent, "fifth")
        lives(agent, "/uncompact")
        lives(place.agent(server), "sixth")
        lines = [line for line in place.journal.open("rb") if line.strip()]
    assert len({json.loads(line)["type"] for line in lines} & set(EVENTS)) >= 13
    return lines


def damaged(lines, data):
    """The journal after something happened to it."""
    lines = list(lines)
    for _ in range(data.draw(st.integers(1, 5))):
        first, second = (data.draw(st.integers(0, len(lines) - 1)) for _ in range(2))
        match data.draw(st.sampled_from(["json", "json", "flip", "drop", "swap", "double", "cut", "shuffle"])):
            case "json":
                with suppress(ValueError):
                    lines[first] = json.dumps(changed(json.loads(lines[first]), data.draw)).encode() + b"\n"
            case "flip":
                lines[first] = damaged_event(lines[first], data.draw)
            case "drop" if len(lines) > 1:
                del lines[first]
            case "swap":
                lines[first], lines[second] = lines[second], lines[first]
            case "double":
                lines.insert(second, lines[first])
            case "cut":
                lines[first:] = [lines[first][: data.draw(st.integers(0, len(lines[first])))]]
            case "shuffle":
                lines = data.draw(st.permutations(lines))
    return b"".join(lines)


@fuzz(80)
@given(st.data())
def test_any_journal(journal, data):
    with Place() as place, Server(*OK, prefix=False) as server:
        place.journal.write_bytes(damaged(journal, data))
        assert "\n" not in outline(place.journal)
        try:
            agent = place.agent(server)
        except ValueError as error:
            assert "not a session" in str(error)
            return
        events = lives(agent)
        assert events[-1].status == "done" and agent.session.messages == Session(place.journal).messages
        for order in ("/undo", "/redo", "/uncompact", "/context", "/cost", "/save x.md"):
            lives(agent, order)
        lives(agent)


@fuzz(15)
@given(st.data())
def test_any_journal_is_replayed(journal, data):
    with Place() as place, Server() as server:
        place.journal.write_bytes(damaged(journal, data))
        with suppress(ValueError):
            facts, shown = read_journal(place.journal), []
            place.journal.unlink()
            assert replay(facts, place.agent(server), shown.append) in (0, 1)
            assert not [result for result in of(Result, shown) if "fault of tinyagent" in result.text]


# --------------------------------------------------------------------------------------------------- any tool arguments

PATHS = ["a.txt", "sub/b.txt", ".", "..", "", "sub", "pipe", "x" * 300, "a\0b", "a.txt/b", "link", "~", "\ud83d"]
COMMANDS = ["echo x", "", "exit 3", "'", "cat", "printf '\\xff'", "kill -9 $$", "\0", "# c", "cat <<EOF"]
NAMES = st.sampled_from(
    ["run_shell_command", "list_files", "read_from_file", "write_to_file", "edit_file", "fetch_url", "exec", ""]
)
GIVEN = st.fixed_dictionaries(
    {},
    optional={
        "command": st.sampled_from(COMMANDS) | st.integers() | st.none(),
        "timeout": st.sampled_from([1, 2, 0, -1, 1.5, "3", None, 10**30]),
        "directory": st.sampled_from(PATHS) | ANYTHING.filter(lambda value: not isinstance(value, str)),
        "path": st.sampled_from(PATHS),
        "content": st.text(max_size=30) | ANYTHING,
        "old": st.sampled_from(["one", "", "\n", "o", "one\ntwo", "x", "\ud83d"]),
        "new": st.text(max_size=5),
        "replace_all": st.booleans() | st.just("yes"),
        "first_line": st.integers() | st.none(),
        "line_count": st.integers(),
        "column": st.integers(),
        "url": st.sampled_from(["http://127.0.0.1:9/", "ftp://x", "", "http://[", "http://a b", "//"]),
    },
)
ARGUMENTS = GIVEN | GIVEN.map(json.dumps) | st.text(max_size=20) | ANYTHING.map(json.dumps)


@fuzz(50)
@given(st.lists(st.tuples(NAMES, ARGUMENTS), min_size=1, max_size=5))
def test_any_arguments(called):
    with Place() as place, Server(calls(*called), *OK, prefix=False) as server:
        (place.work / "a.txt").write_bytes(b"one\r\ntwo\xff\n")
        (place.work / "sub").mkdir()
        os.mkfifo(place.work / "pipe")
        (place.work / "link").symlink_to("nowhere")
        returned = of(ToolReturned, lives(place.agent(server, enable="fetch_url")))
        assert len(returned) == len(called)
        assert [entry.name for entry in Path(place.folder.name).iterdir()] in (["work", "state"], ["state", "work"])
        for result in (result.text for result in returned if result.text.startswith("error:")):
            note(result)
            assert re.fullmatch(r"error: [^\n]+(\n\[This call .*\])?", result) and "Traceback" not in result


# ----------------------------------------------------------------------------------------------------- any user actions

ACTIONS = ["say", "say", "call", "call", "hint", "interrupt", "overflow", "cut", "refuse", "limit", "resume"]
ACTIONS += ["/undo", "/undo", "/redo", "/diff", "/compact", "/uncompact", "/context", "/model other", "/ask on"]
ACTIONS += ["/ask off", "/cost", "/save x.md", "!echo mine >> mine.txt", "/nothing", "yes", "no"]
OVERFLOW = error(400, {"error": {"message": "too long", "code": "context_length_exceeded"}})


class User:
    """Does things in a conversation, one after the other; what must hold is looked at after each."""

    def __init__(self, place, server, replies):
        self.place, self.server, self.replies, self.number, self.answer = place, server, replies, 0, "y"
        self.resume()

    def resume(self, **more):
        self.agent = self.place.agent(self.server, **more)
        self.agent.approve = lambda question: self.answer

    def do(self, action):
        """An action; the replies that it needs come next."""
        self.number += 1
        append = ("run_shell_command", {"command": f"echo {self.number} >> log.txt"})
        write = ("write_to_file", {"path": f"{self.number % 3}.txt", "content": f"{self.number}\n"})
        text, self.replies[:] = f"message {self.number}", []
        if action[0] in "/!":
            return self.order(action)
        match action:
            case "call" | "limit":
                self.replies += [calls(append, write, append)]
            case "hint":
                self.replies += [calls(append, write, append)]
                self.agent.hints = iter([[], ["by the way"], *[[]] * 100_000]).__next__
            case "overflow":
                self.replies += [OVERFLOW]
            case "cut":
                self.replies += [raw(*streams(calls(append, usage=False))[:-3]), calls(write)]
            case "refuse":
                self.replies += [error(401, "no key")]
            case "yes" | "no":
                self.answer, text = "y" if action == "yes" else "rather not", "/context"
        if action in ("limit", "resume"):
            self.resume(max_steps=int(action == "limit"))
        if action == "interrupt":
            return self.interrupted(append, write)
        lives(self.agent, text)

    def order(self, action):
        with suppress(ValueError):  # there is no such command
            lives(self.agent, action)

    def interrupted(self, *called):
        """A turn that is stopped at one of its events."""
        self.replies += [calls(*called, *called)]
        for number, _ in enumerate(self.agent.turn("long work")):
            if number == self.number % 11:
                self.agent.stopped.set()

    def look(self):
        """The history is what the journal says, and the files that commands change are there."""
        assert Session(self.place.journal).messages == self.agent.session.messages
        assert not self.agent.heard
        for call in of(dict, self.agent.session.messages):
            assert call.get("content") or call.get("tool_calls")


@fuzz(25)
@given(st.lists(st.sampled_from(ACTIONS), min_size=2, max_size=9))
def test_any_actions(actions):
    replies = []

    def next_reply(request):
        return replies.pop(0) if replies else ok(request)

    with Place() as place, Server(*[next_reply] * 2000, prefix=False) as server:
        user = User(place, server, replies)
        user.do("say")
        for action in actions:
            user.do(action)
            user.look()
        user.resume()
        lives(user.agent, "the end")
