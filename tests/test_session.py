"""The history and its journal: what is resumed is what was there, and a server takes it whatever was lost."""

import json
import os
import stat
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from conftest import disk_with_room_for
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Server, breaches, calls, say

from tinyagent import (
    INTERRUPTED,
    NOT_RUN,
    Agent,
    Compacted,
    Config,
    ModelReplied,
    Noticed,
    Opened,
    Result,
    Session,
    Shortened,
    ToolCalled,
    ToolReturned,
    Uncompacted,
    Undone,
    UserSaid,
    read_journal,
)

USAGE = {"prompt_tokens": 9, "cached_tokens": 0, "completion_tokens": 1}


def opened(system="You are an agent."):
    return Opened("id", "/somewhere", "model", "http://127.0.0.1/v1", system)


def answer(text):
    return ModelReplied({"role": "assistant", "content": text}, USAGE, {})


def call(*ids, text=""):
    """A reply that calls a tool once for each id."""
    function = {"name": "list_files", "arguments": "{}"}
    called = [{"id": id, "type": "function", "function": function} for id in ids]
    return ModelReplied({"role": "assistant", "content": text, "tool_calls": called}, USAGE, {})


def ran(id, text="(empty)"):
    """The facts of a call that was carried out."""
    return ToolCalled(id, "read", "Listing ."), ToolReturned(id, text, False)


def new_session(folder, *facts):
    """A session in which that happened."""
    session = Session(Path(folder) / "home" / "work-0" / "sessions" / "20260101-000000-abcd.jsonl")
    for fact in (opened(), *facts):
        session.record(fact)
    return session


def said(session):
    """The history as pairs of role and content."""
    return [(message["role"], message["content"]) for message in session.messages]


def next_request(session):
    """What is sent when the user says something in this session."""
    sent = []

    def chat(request, *_):
        sent.append(request)
        yield from ()
        return answer("yes")

    happened = list(Agent(Config(), session.path.parent, session, chat).turn("and now?"))
    assert happened[-1].status == "done"
    return {"model": "model", **sent[0]}


TOLD = [
    *[UserSaid("1"), call("a", "b"), *ran("a"), *ran("b"), call("a"), *ran("a", "again"), answer("2")],
    *[
        Result("done", 0, "2", 3, USAGE, "id", {}),
        UserSaid("3"),
        call("c", "d", text="two"),
        *ran("c"),
        UserSaid("stop"),
    ],
    *[answer("4"), Compacted(8, "sum", "new"), UserSaid("5"), call("e"), *ran("e"), Compacted(4, "sum", "new")],
    *[answer("6"), opened("A newer one."), UserSaid("7"), call("f"), ran("f")[0]],
]
STORIES = {
    "nothing": [],
    "a text": [UserSaid("hi"), answer("hello 😀 é \u2028 \n"), UserSaid("again"), answer("yes")],
    "a call": [UserSaid("look"), call("a", text="I look."), *ran("a"), answer("nothing there")],
    "two calls": [UserSaid("look"), call("a", "b"), *ran("a", "1"), *ran("b", "2"), answer("done")],
    "the same id for ever": [UserSaid("look"), call("X"), *ran("X", "1"), call("X"), *ran("X", "2"), answer("done")],
    "killed in the second of three calls": [UserSaid("look"), call("a", "b", "c"), *ran("a"), ran("b")[0]],
    "interrupted, then something else": [UserSaid("look"), call("a", "b"), *ran("a"), UserSaid("stop"), answer("ok")],
    "asked without an answer": [UserSaid("look"), UserSaid("look!"), UserSaid("hello?")],
    "compacted": [UserSaid("1"), answer("2"), UserSaid("3"), answer("4"), Compacted(2, "12", "new"), UserSaid("5")],
    "compacted twice": [
        *[UserSaid("1"), answer("2"), UserSaid("3"), call("a"), *ran("a"), answer("4")],
        *[Compacted(2, "12", "new"), UserSaid("5"), Compacted(4, "1234", "newer"), answer("6")],
    ],
    "all of it": TOLD,
}


@pytest.mark.parametrize("name", STORIES)
def test_the_resumed_history_is_the_live_one(tmp_path, name):
    live = new_session(tmp_path, *STORIES[name])
    resumed = Session(live.path)
    assert (resumed.messages, resumed.system, resumed.unanswered) == (live.messages, live.system, live.unanswered)
    assert (resumed.directory, resumed.id, resumed.warnings) == ("/somewhere", "20260101-000000-abcd", [])
    assert next_request(resumed) == next_request(live)


@pytest.mark.parametrize("name", STORIES)
def test_what_is_sent_next_breaks_no_rule(tmp_path, name):
    request = next_request(new_session(tmp_path, *STORIES[name]))
    assert breaches(request) == []
    assert request["messages"][-1]["content"].endswith("and now?")


def test_a_turn_over_http_is_resumed_as_it_was_sent(run, workspace, home):
    called = [("write_to_file", {"path": "a", "content": "é\r\n"}), ("run_shell_command", {"command": "cat a; pwd"})]
    with Server(calls(*called, text="I write."), say("Written.")) as server:
        assert run("write", "--start_dir", workspace, server=server).returncode == 0
    (path,) = home.glob("*/sessions/*.jsonl")
    sent = server.requests[-1].body["messages"]
    assert Session(path).messages == [*sent[1:], {"role": "assistant", "content": "Written."}]
    assert (Session(path).system, Session(path).directory) == (sent[0]["content"], str(workspace))


# -------------------------------------------------------------------------------------------------- what history says


def test_calls_without_a_result_get_one_in_their_order(tmp_path):
    session = new_session(
        tmp_path, UserSaid("look"), call("a", "b", "c"), *ran("a", "1"), ran("b")[0], UserSaid("stop")
    )
    tools = [(message["tool_call_id"], message["content"]) for message in session.messages[2:5]]
    assert tools == [("a", "1"), ("b", INTERRUPTED), ("c", NOT_RUN)]
    assert said(session)[-1] == ("user", "stop")


@pytest.mark.parametrize("id", ["z", "", "a"])
def test_a_result_without_a_call_is_dropped(tmp_path, id):
    session = new_session(
        tmp_path, UserSaid("look"), call("a"), *ran("a", "1"), *ran(id, "2"), answer("done"), *ran(id)
    )
    assert said(session) == [("user", "look"), ("assistant", ""), ("tool", "1"), ("assistant", "done")]


def test_a_summary_takes_the_place_of_the_first_messages(tmp_path):
    session = new_session(tmp_path, *STORIES["compacted"])
    assert "12" in session.messages[0]["content"] and "latest" not in session.messages[0]["content"]
    assert said(session)[1:] == [("user", "3"), ("assistant", "4"), ("user", "5")]
    assert session.system == "new"


def test_the_latest_words_of_the_user_survive_a_summary(tmp_path):
    words = "Build it {so} \n\nand well"
    facts = UserSaid("before"), answer("ok"), UserSaid(words), call("a"), *ran("a"), call("b"), *ran("b")
    session = Session(new_session(tmp_path, *facts, Compacted(5, "all {of} it", "new")).path)
    assert session.messages[0]["content"].endswith(words) and "all {of} it" in session.messages[0]["content"]
    assert [role for role, _ in said(session)] == ["user", "assistant", "tool"]
    session.record(Compacted(1, "again", "new"))
    assert session.messages[0]["content"].endswith(words)


@pytest.mark.parametrize("fact", [Compacted(1, "sum", "new"), Uncompacted()], ids=lambda fact: fact.type)
def test_what_was_taken_back_before_a_summary_came_or_went_is_not_redone(tmp_path, fact):
    earlier = UserSaid("1"), answer("one"), Compacted(1, "sum", "new")
    session = new_session(tmp_path, *earlier, UserSaid("2"), answer("two"), Undone(""), fact)
    for each in (session, Session(session.path)):
        before = said(each)
        assert "nothing to redo" in [*Agent(Config(), tmp_path, each, None).turn("/redo")][-1].text
        assert said(each) == before


def test_what_was_shortened_behind_a_summary_is_whole_again_without_it(tmp_path):
    long = answer("word " * 1_000)
    session = new_session(tmp_path, UserSaid("1"), long, UserSaid("2"), long, UserSaid("3"))
    whole = said(session)
    for fact in (Compacted(2, "sum", "new"), Shortened(600)):
        session.record(fact)
    assert "cut: 5,000 characters" in session.messages[2]["content"]
    session.record(Uncompacted())
    assert said(session) == whole == said(Session(session.path))


def test_the_system_message_is_that_of_the_latest_opening(tmp_path):
    session = new_session(tmp_path, UserSaid("hi"), answer("hello"), opened("A newer one."))
    assert Session(session.path).system == "A newer one."


# -------------------------------------------------------------------------------------------------- damaged journals

WHOLE = [UserSaid("é"), call("a", "b"), *ran("a", "1"), *ran("b", "2"), Compacted(1, "s", "new"), answer("done")]


def test_a_journal_may_end_anywhere(tmp_path):
    path = new_session(tmp_path, *WHOLE).path
    data = path.read_bytes()
    for end in range(data.index(b"}\n") + 1, len(data)):
        path.write_bytes(data[:end])
        session = Session(path)
        before = list(session.messages)
        session.record(opened())
        session.record(UserSaid("next"))
        resumed = Session(path)
        assert resumed.messages == session.messages and said(resumed)[-1] == ("user", "next")
        assert resumed.messages[: len(before)] == before


def test_a_torn_line_is_told_of_once_and_left_out(tmp_path):
    path = new_session(tmp_path, UserSaid("hi")).path
    path.write_bytes(path.read_bytes() + UserSaid("caf\xe9").to_json().encode()[:-20])
    session = Session(path)
    assert said(session) == [("user", "hi")]
    assert "1 damaged line" in session.warnings[0] and str(path) in session.warnings[0]
    assert isinstance(read_journal(path)[-1], Noticed)


GARBAGE = [
    b"garbage",
    b"\xff\xfe\x00",
    b"\0" * 100,
    b'"text"',
    b"5",
    b"null",
    b"[]",
    b"{}",
    b'{"type": "nothing known"}',
    b'{"type": ["user_said"], "text": "x"}',
    b'{"type": "user_said"}',
    b'{"type": "user_said", "text": "x"} more',
    b'{"type": "user_said", "text": "x", "text',
]
WRONG = [  # JSON, and still no fact
    b"[" * 100_000,
    b'{"type": "user_said", "text": 5}',
    b'{"type": "model_replied", "message": null, "usage": {}, "faults": {}}',
    b'{"type": "compacted", "cut": "x", "summary": "x", "system": "x"}',
    call("a", "a").to_json().encode(),
    call(text="no calls").to_json().encode(),
]


@pytest.mark.parametrize("line", GARBAGE + WRONG, ids=[str(line[:40]) for line in GARBAGE + WRONG])
def test_a_line_of_garbage_is_left_out(tmp_path, line):
    path = new_session(tmp_path, UserSaid("hi")).path
    path.write_bytes(path.read_bytes() + line + b"\n" + answer("hello").to_json().encode() + b"\n\n")
    session = Session(path)
    assert said(session) == [("user", "hi"), ("assistant", "hello")]
    assert "1 damaged line " in session.warnings[0]


NO_JOURNAL = [b"", b"\n", b"text\n", UserSaid("hi", 1.0).to_json().encode(), b'{"type": "opened", "se']


@pytest.mark.parametrize("data", NO_JOURNAL)
def test_what_is_no_journal(tmp_path, data):
    (tmp_path / "notes.jsonl").write_bytes(data)
    with pytest.raises(ValueError, match=r"notes\.jsonl is not a session"):
        Session(tmp_path / "notes.jsonl")


def test_a_field_that_is_not_known_is_ignored(tmp_path):
    path = new_session(tmp_path).path
    path.write_text(path.read_text() + json.dumps({"type": "user_said", "text": "hi", "mood": "good"}))
    session = Session(path)
    assert (said(session), session.warnings) == ([("user", "hi")], [])


@settings(max_examples=300, deadline=None, database=None, derandomize=True)
@given(st.lists(st.sampled_from(range(len(TOLD))), max_size=2 * len(TOLD)) | st.sets(st.sampled_from(range(len(TOLD)))))
def test_whatever_of_a_journal_is_lost_what_is_sent_breaks_no_rule(lines):
    """Lines of a list are dropped, doubled and shuffled; those of a set are only dropped."""
    with TemporaryDirectory() as folder:
        lines = sorted(set(range(len(TOLD))) - lines) if isinstance(lines, set) else lines
        path = new_session(folder, *[TOLD[line] for line in lines]).path
        assert breaches(next_request(Session(path))) == []


# ---------------------------------------------------------------------------------------------------------- on disk


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_nobody_else_can_read_a_journal(tmp_path):
    before = os.umask(0o022)
    try:
        path = new_session(tmp_path, UserSaid("hi")).path
    finally:
        os.umask(before)
    assert mode(path) == 0o600
    assert [mode(folder) for folder in path.parents[:3]] == [0o700] * 3


def test_a_journal_can_be_read_by_a_person_and_needs_nothing_to_be_there(tmp_path):
    session = new_session(tmp_path / "not" / "there", UserSaid("caf\xe9"))
    assert '"text": "caf\xe9"' in session.path.read_text("utf-8") and session.whole


@pytest.mark.parametrize("there", [True, False])
def test_a_link_in_the_place_of_the_journal_is_not_followed(tmp_path, there):
    session = Session(tmp_path / "home" / "work-0" / "sessions" / "id.jsonl")
    session.path.parent.mkdir(parents=True)
    session.path.symlink_to(tmp_path / "target")
    if there:
        (tmp_path / "target").write_text("keep this\n")
    session.record(opened())
    assert (tmp_path / "target").exists() == there
    assert not there or (tmp_path / "target").read_text() == "keep this\n"
    assert str(session.path) in session.warnings[0] and "cannot be written" in session.warnings[0]


def test_a_journal_that_cannot_be_written_does_not_stop_the_session(tmp_path):
    (tmp_path / "home").write_text("a file where a folder should be\n")
    session = new_session(tmp_path, UserSaid("hi"))
    assert said(session) == [("user", "hi")]
    assert "cannot be written" in session.warnings[0]


def test_each_fact_is_on_disk_when_it_is_recorded(tmp_path):
    session = new_session(tmp_path)
    for fact in WHOLE:
        assert session.record(fact) is fact
        assert read_journal(session.path)[-1] == fact


def test_a_line_that_was_written_in_part_is_told_and_takes_no_other_with_it(tmp_path):
    session = new_session(tmp_path, UserSaid("one"))
    with disk_with_room_for(session.path.stat().st_size + 20):
        session.record(UserSaid("two"))
    session.record(UserSaid("three"))
    assert "cannot be written" in session.warnings[0]
    assert said(Session(session.path)) == [("user", "one"), ("user", "three")]
