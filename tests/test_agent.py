"""Turns of the agent, as stories: which events come, what the history is, and what was sent."""

import json
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from scripted import HANG, Server, calls, chunk, error, event, raw, say, stream, tokens

from tinyagent import NOT_RUN, SUMMARY_PROMPT, Agent, Config, Model, Printed, Session, TextArrived

OVERFLOW = error(400, {"error": {"message": "too long", "code": "context_length_exceeded"}})
ECHO = ("run_shell_command", {"command": "echo from-the-shell"})


def echo(number):
    """A call like no other."""
    return "run_shell_command", {"command": f"echo from-the-shell {number}"}


RAN_FACTS = ["snapped", "tool_called", "tool_returned"]
ASKED = ["Opened", "UserSaid"]
RAN, WROTE = ["ToolCalled", "ToolReturned"], ["ToolCalled", "Changing", "ToolReturned"]
COMPACTED = ["Noticed", "Compacted"]


@dataclass
class Story:
    """An agent and all that happened to it."""

    agent: Agent
    events: list = field(default_factory=list)

    def say(self, text):
        """A turn; gives back its Result."""
        self.events += self.agent.turn(text)
        return self.events[-1]

    def kinds(self):
        """What happened, without the pieces of text, and of what commands print while they run."""
        return [type(e).__name__ for e in self.events if not isinstance(e, TextArrived | Printed)]

    def results(self):
        """The texts that tools gave back."""
        return [e.text for e in self.events if type(e).__name__ == "ToolReturned"]


@pytest.fixture
def story(workspace, home):
    """Makes the agent of a server, in the workspace."""

    def make(server, **more):
        config = Config(base_url=server.url, model="scripted", **more)
        session = Session(home / "work" / "sessions" / "test.jsonl")
        return Story(Agent(config, workspace, session, Model(config, session.learned).chat))

    return make


def sent(server, number=-1):
    """The messages of a request after the system's, as pairs of role and text; the calls of a message are its text."""
    messages = server.requests[number].body["messages"][1:]
    return [(m["role"], written(m) if "tool_calls" in m else m["content"]) for m in messages]


def written(message):
    functions = [call["function"] for call in message["tool_calls"]]
    return [(function["name"], json.loads(function["arguments"])) for function in functions]


# --------------------------------------------------------------------------------------------------- answers and tools


def test_a_plain_answer(story):
    with Server(say("Hello, you.", usage={"prompt_tokens": 7, "completion_tokens": 3})) as server:
        told = story(server)
        result = told.say("hi")
    assert told.kinds() == [*ASKED, "ModelReplied", "Result"]
    assert "".join(e.text for e in told.events if isinstance(e, TextArrived)) == "Hello, you."
    assert (result.status, result.exit_code, result.text, result.steps) == ("done", 0, "Hello, you.", 1)
    assert result.usage == {"prompt_tokens": 7, "cached_tokens": 0, "completion_tokens": 3}
    assert sent(server) == [("user", "hi")]
    assert told.agent.session.messages[-1] == {"role": "assistant", "content": "Hello, you."}


def test_one_tool(story):
    with Server(calls(ECHO, text="I look."), say("Done.")) as server:
        told = story(server)
        result = told.say("look")
    assert told.kinds() == [*ASKED, "ModelReplied", *RAN, "ModelReplied", "Result"]
    assert (result.status, result.text, result.steps) == ("done", "Done.", 2)
    assert sent(server) == [("user", "look"), ("assistant", [ECHO]), ("tool", "exit code 0\nfrom-the-shell\n")]
    assert server.requests[1].body["messages"][2]["content"] == "I look."


def test_two_calls_in_one_reply(story, workspace):
    both = ("write_to_file", {"path": "a", "content": "1"}), ("run_shell_command", {"command": "cat a"})
    with Server(calls(*both), say("Done.")) as server:
        told = story(server)
        told.say("do both")
    assert told.kinds() == [*ASKED, "ModelReplied", *WROTE, *RAN, "ModelReplied", "Result"]
    assert sent(server)[1:] == [("assistant", [*both]), ("tool", told.results()[0]), ("tool", "exit code 0\n1")]


def test_the_same_id_in_every_reply(story):
    commands = [("run_shell_command", {"command": f"echo {word}"}) for word in ("one", "two", "three")]
    with Server(*(calls(command, ids=["same"]) for command in commands), say("Done.")) as server:
        told = story(server)
        told.say("count")
    assert told.results() == [f"exit code 0\n{word}\n" for word in ("one", "two", "three")]
    assert [role for role, _ in sent(server)] == ["user", *["assistant", "tool"] * 3]


def test_a_call_that_is_only_written_is_not_run(story, workspace):
    text = '<tool_call>{"name": "run_shell_command", "arguments": {"command": "touch X"}}</tool_call>'
    with Server(say(text)) as server:
        assert story(server).say("go").text == text
    assert not (workspace / "X").exists()


def test_a_conversation_goes_on_where_it_was(story):
    with Server(calls(ECHO), say("One."), say("Two.")) as server:
        told = story(server)
        told.say("first")
        told.say("second")
    assert [role for role, _ in sent(server)] == ["user", "assistant", "tool", "assistant", "user"]
    assert told.kinds().count("Opened") == 1


def test_reasoning_is_sent_back(story):
    thinking = chunk({"reasoning_content": "Let me see."})
    call = {"index": 0, "id": "a", "function": {"name": "list_files", "arguments": "{}"}}
    with Server(stream(thinking, chunk({"tool_calls": [call]}), chunk({}, "tool_calls")), say("Done.")) as server:
        story(server).say("look")
    assert server.requests[1].body["messages"][2]["reasoning_content"] == "Let me see."


@pytest.mark.parametrize(
    "text", ["NEED_INPUT: which database?", "I cannot go on. NEED_INPUT", "**NEED_INPUT** the key"]
)
def test_need_input(story, text):
    with Server(say(text)) as server:
        result = story(server).say("go")
    assert (result.status, result.exit_code, result.text) == ("needs_input", 3, text)


@pytest.mark.parametrize("text", ["I wrote `NEED_INPUT` into the documentation.", "NEED_INPUT_FIELD is set."])
def test_need_input_in_passing_is_no_need(story, text):
    with Server(say(text)) as server:
        assert story(server).say("go").status == "done"


# ----------------------------------------------------------------------------------------------------- faulty calls


@pytest.mark.parametrize(
    "name", ["search_web", "", "Run_Shell_Command", "os.system", "turn", "path", "__init__", "x" * 99]
)
def test_an_unknown_tool_beside_a_good_one(story, name):
    with Server(calls((name, {"command": "touch X"}), ECHO), say("Done.")) as server:
        told = story(server)
        assert told.say("go").status == "done"
    assert told.kinds() == [*ASKED, "ModelReplied", "ToolReturned", *RAN, "ModelReplied", "Result"]
    assert told.results()[0].startswith("error: ") and "run_shell_command" in told.results()[0]
    assert told.results()[1] == "exit code 0\nfrom-the-shell\n"


def test_junk_after_the_name_of_a_tool(story):
    with Server(calls(("run_shell_command<|channel|>commentary", {"command": "echo ran"})), say("Done.")) as server:
        told = story(server)
        told.say("go")
    assert told.results() == ["exit code 0\nran\n"]


UNRUNNABLE = {  # arguments of a shell command -> a word of the answer
    "broken": ('{"command": "touch X', "JSON"),
    "with more after it": ('{"command": "touch X"} touch Y', "JSON"),
    "twice": ('{"command": "touch X"}{"command": "touch Y"}', "JSON"),
    "in a fence": ('```json\n{"command": "touch X"}\n```', "JSON"),
    "missing": ("", "command"),
    "null": ("null", "object"),
    "a list": ('["touch X"]', "object"),
    "a number": ("5", "object"),
    "no name": ('{"": "touch X"}', "command"),
    "of another type": ('{"command": ["touch", "X"]}', "command"),
    "one too many": ('{"command": "touch X", "sudo": true}', "sudo"),
    "out of range": ('{"command": "touch X", "timeout": 0}', "timeout"),
    "not a number": ('{"command": "touch X", "timeout": "soon"}', "timeout"),
    "with a NUL": ('{"command": "touch X\\u0000"}', "null"),
}


@pytest.mark.parametrize(("arguments", "word"), UNRUNNABLE.values(), ids=UNRUNNABLE)
def test_bad_arguments_are_an_answer_of_one_line_and_nothing_runs(story, workspace, arguments, word):
    with Server(calls(("run_shell_command", arguments)), say("Done.")) as server:
        told = story(server)
        assert told.say("go").status == "done"
    (answer,) = told.results()
    assert answer.startswith("error: ") and word in answer and "\n" not in answer and len(answer) < 400
    assert list(workspace.iterdir()) == []
    assert sent(server)[-1] == ("tool", answer)


RUN = {
    "empty, where none is needed": ("list_files", "", "(empty)"),
    "blank, where none is needed": ("list_files", " \n", "(empty)"),
    "encoded twice": ("run_shell_command", json.dumps('{"command": "echo ran\n"}'), "exit code 0\nran\n"),
    "a number as text": ("run_shell_command", '{"command": "echo ran", "timeout": "30"}', "exit code 0\nran\n"),
    "a line end in a string": ("run_shell_command", '{"command": "echo ran\necho twice"}', "exit code 0\nran\ntwice\n"),
    "half a surrogate pair": ("run_shell_command", '{"command": "echo \\ud83d"}', "exit code 0\n\ufffd\n"),
}


@pytest.mark.parametrize(("name", "arguments", "result"), RUN.values(), ids=RUN)
def test_odd_arguments_that_are_clear_are_run(story, name, arguments, result):
    with Server(calls((name, arguments)), say("Done.")) as server:
        told = story(server)
        told.say("go")
    assert told.results() == [result]


def test_arguments_cut_at_the_output_limit(story, workspace):
    with Server(calls(("write_to_file", '{"path": "a", "content": "12'), finish="length"), say("Done.")) as server:
        told = story(server)
        told.say("write")
    assert list(workspace.iterdir()) == [] and "cut off" in told.results()[0]
    assert sent(server)[1] == ("assistant", [("write_to_file", {})])


def test_a_hint_of_nothing_is_none_and_a_users_command_asks_for_nothing(story):
    with Server(calls(ECHO), say("Done.")) as server:
        told = story(server)
        told.agent.hints = lambda: ["", " \n"]
        assert told.say("go").status == "done" == told.say("!echo NEED_INPUT").status
    assert "exit code 0" in sent(server)[-1][1] and len(server.requests) == 2


def test_a_fault_of_the_agent_itself_ends_the_turn_alone(story):
    with Server(say("Done.")) as server:
        told = story(server)
        chat, told.agent.chat = told.agent.chat, lambda *_: 1 / 0
        assert "a fault of tinyagent itself: ZeroDivisionError" in told.say("go").text
        told.agent.chat = chat
        assert told.say("again").text == "Done." and not told.agent.stopped.is_set()
    assert [event.status for event in told.events if type(event).__name__ == "Result"] == ["error", "done"]


def test_a_tool_that_fails_is_an_answer(story):
    with Server(calls(("read_from_file", {"path": "missing.txt"})), say("Done.")) as server:
        told = story(server)
        told.say("read")
    (answer,) = told.results()
    assert answer.startswith("error: ") and "missing.txt" in answer and "\n" not in answer
    assert [e.failed for e in told.events if type(e).__name__ == "ToolReturned"] == [True]


# ----------------------------------------------------------------------------------------------------------- limits


def test_max_steps(story):
    with Server(*[calls(ECHO)] * 9, prefix=False) as server:
        told = story(server, max_steps=2)
        result = told.say("go on for ever")
    assert (result.status, result.exit_code, result.steps) == ("limit", 4, 2)
    assert len(server.requests) == 2 and told.kinds().count("ToolReturned") == 2


def test_the_limit_is_that_of_a_turn(story):
    with Server(calls(ECHO), calls(ECHO), say("Done.")) as server:
        told = story(server, max_steps=2)
        assert [told.say("go").status, told.say("go on").status] == ["limit", "done"]
    assert sent(server)[-1] == ("user", "go on")


def test_max_tokens(story):
    with Server(*[calls(ECHO, usage={"prompt_tokens": 900, "completion_tokens": 200})] * 9) as server:
        assert story(server, max_tokens=2000).say("go on for ever").status == "limit"
    assert len(server.requests) == 2


def test_the_usage_of_a_turn_and_of_the_session(story):
    """Also after a turn in which nothing was used, and after one that used what others did not."""
    used = {
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "completion_tokens_details": {"reasoning_tokens": 2},
        "cost": 0.5,
    }
    first = {"prompt_tokens": 7, "cached_tokens": 0, "completion_tokens": 3, "reasoning_tokens": 2, "cost": 0.5}
    script = (
        say("One.", usage=used),
        error(401, {"error": {"message": "no"}}),
        say("Three.", usage={"prompt_tokens": 5}),
    )
    with Server(*script) as server:
        told = story(server)
        one, two, three = (told.say(text) for text in ("first", "second", "third"))
        four = story(server).say("resumed")
    assert one.usage == one.total == two.total == first and not any(two.usage.values())
    assert (three.usage["prompt_tokens"], three.total) == (5, first | {"prompt_tokens": 12})
    assert four.total == three.total


def test_max_seconds(story):
    with Server(calls(("run_shell_command", {"command": "sleep 30"}), ECHO)) as server:
        told = story(server, max_seconds=1)
        began = time.monotonic()
        assert told.say("sleep").status == "limit"
    assert time.monotonic() - began < 4


# ------------------------------------------------------------------------------------------------------- compaction


def test_a_full_context_is_summarised_and_the_turn_goes_on(story, workspace):
    (workspace / "plan.txt").write_text("the first plan")
    script = calls(ECHO), say("One."), OVERFLOW, say("They talked."), say("Two.")
    with Server(*script, prefix=False) as server:
        told = story(server)
        told.say("first")
        (workspace / "plan.txt").write_text("the plan of now")
        result = told.say("second, word for word")
    turn = [*COMPACTED, "ModelReplied", "Result"]
    assert told.kinds()[-5:] == ["UserSaid", *turn] and (result.status, result.text) == ("done", "Two.")
    asked, retried = server.requests[3].body["messages"], server.requests[4].body["messages"]
    assert asked[-1]["content"].endswith(SUMMARY_PROMPT)
    assert "They talked." in retried[1]["content"] and sent(server)[-1][1].endswith("second, word for word")
    assert "the first plan" in server.requests[2].body["messages"][0]["content"]
    assert "the plan of now" in retried[0]["content"] and "the first plan" not in retried[0]["content"]


def test_the_summary_is_asked_for_with_what_the_server_has_in_its_cache(story):
    with Server(calls(ECHO), say("One."), OVERFLOW, say("They talked."), say("Two."), prefix=False) as server:
        told = story(server)
        told.say("first")
        told.say("second")
    before, asked = server.requests[2].body, server.requests[3].body
    assert asked["tools"] == before["tools"]
    assert (
        asked["messages"][0] == before["messages"][0]
        and asked["messages"][:-1] == before["messages"][: len(asked["messages"]) - 1]
    )


def test_the_words_of_a_summary_are_not_shown_as_an_answer(story):
    with Server(say("One."), OVERFLOW, say("They talked."), say("Two."), prefix=False) as server:
        told = story(server)
        told.say("first")
        told.say("second")
    assert "".join(e.text for e in told.events if isinstance(e, TextArrived)) == "One.Two."


def test_the_latest_words_stay_whole_when_they_are_summarised(story):
    words = "remember the word heliotrope"
    with Server(calls(ECHO), calls(ECHO), OVERFLOW, say("They talked."), say("Done."), prefix=False) as server:
        assert story(server).say(words).status == "done"
    assert any("They talked." in text and words in text for _, text in sent(server) if isinstance(text, str))


@pytest.mark.parametrize("number", range(1, 6))
def test_no_cut_parts_calls_from_their_results(story, number):
    """The server checks it in each request."""
    said = iter(range(1000))
    before = [calls(*[echo(next(said)) for _ in range(1 + step % 3)]) for step in range(2 * number)]
    script = *before[:number], OVERFLOW, say("S1"), *before[number:], OVERFLOW, say("S2"), say("Done.")
    with Server(*script, prefix=False) as server:
        assert story(server).say("go").status == "done"
    assert "S2" in sent(server)[0][1] and "S1" not in str(sent(server))


@pytest.mark.parametrize("usage", [True, False])
def test_compaction_before_the_window_is_full(story, usage):
    """Without an error of the server, and whether it counts tokens or not, no request is longer than the window."""
    words = "for i in {1..80}; do echo the quick brown fox jumps over %s dogs; done"

    def reply(request):
        if SUMMARY_PROMPT in request.body["messages"][-1]["content"]:
            return say("They counted.", usage=usage)
        step = len(server.requests)
        big = ("run_shell_command", {"command": words % step})
        return calls(big, usage=usage) if step < 30 else say("Done.", usage=usage)

    with Server(*[reply] * 40, prefix=False) as server:
        told = story(server, context=8000)
        assert told.say("count").status == "done"
    assert 1 <= told.kinds().count("Compacted") <= 15
    longest = max(tokens(request.body["messages"], request.body["tools"]) for request in server.requests)
    assert 5000 < longest < 8000


def test_a_reply_in_several_pieces_does_not_fill_the_window(story):
    """Each piece is a request of its own, but the next request is no longer for that."""
    used = {"prompt_tokens": 3000, "completion_tokens": 10}
    pieces = [say(text, finish="length", usage=used) for text in "ab"]
    with Server(*pieces, say("c", usage=used), say("Done.", usage=used), prefix=False) as server:
        told = story(server, context=8000)
        assert [told.say("go").text, told.say("and?").text] == ["abc", "Done."]
    assert "Compacted" not in told.kinds()


def test_a_compacted_session_is_resumed_as_it_was(story):
    with Server(calls(ECHO), say("One."), OVERFLOW, say("They talked."), say("Two."), prefix=False) as server:
        told = story(server)
        told.say("first")
        told.say("second")
    resumed = Session(told.agent.session.path)
    assert (resumed.messages, resumed.system) == (told.agent.session.messages, told.agent.session.system)


def test_a_server_for_which_everything_is_too_long(story):
    with Server(calls(ECHO), say("One."), *[OVERFLOW] * 40, prefix=False) as server:
        told = story(server)
        told.say("first")
        result = told.say("second")
    assert (result.status, result.exit_code) == ("refused", 5) and len(result.text) > 20
    assert len(server.requests) <= 12


def test_a_server_that_reads_half_of_it_is_told_of_once(story):
    """Some cut what is too long for them, and say nothing."""
    big = ("run_shell_command", {"command": "seq 1 5000"})
    few = {"prompt_tokens": 900, "completion_tokens": 9}
    with Server(*[calls(big, usage=few)] * 4, say("Done.", usage=few), say("Again.", usage=few)) as server:
        told = story(server)
        assert [told.say("count").status, told.say("again").status] == ["done", "done"]
    warnings = [e.text for e in told.events if type(e).__name__ == "Noticed"]
    assert len(warnings) == 1 and "900" in warnings[0]


def test_many_results_at_once_in_a_small_window(story):
    """What one reply asked for cannot be parted; it has to fit all the same."""

    def reply(request):
        if tokens(request.body["messages"], request.body["tools"]) > 8000:
            return OVERFLOW
        if SUMMARY_PROMPT in request.body["messages"][-1]["content"]:
            return say("They counted.")
        return (
            calls(*[("run_shell_command", {"command": "seq 1 5000"})] * 8)
            if len(server.requests) == 1
            else say("Done.")
        )

    with Server(*[reply] * 40, prefix=False) as server:
        result = story(server, context=8000).say("count")
    assert result.status == "done" and len(server.requests) <= 12


def small(request):
    """A server whose window is smaller than one result, and that does not tell it."""
    if tokens(request.body["messages"], request.body["tools"]) > 4500:
        return OVERFLOW
    if SUMMARY_PROMPT in request.body["messages"][-1]["content"]:
        return say("They counted.")
    counting = request.body["messages"][-1]["content"] == "count"
    return calls(("run_shell_command", {"command": "seq 1 9000"})) if counting else say("Done.")


def test_one_result_that_is_too_long_for_a_window_that_nobody_told(story):
    """Nothing before it can make room: it has to be shortened itself."""
    with Server(*[small] * 40, prefix=False) as server:
        assert story(server).say("count").status == "done"
    assert len(server.requests) <= 12


def test_after_a_result_that_was_too_long_the_conversation_can_go_on(story):
    with Server(*[small] * 40, prefix=False) as server:
        told = story(server)
        told.say("count")
        assert told.say("go on without it").status == "done"


def test_a_first_request_that_is_too_long(story):
    with Server(*[OVERFLOW] * 40) as server:
        result = story(server).say("a very long text")
    assert result.status == "refused" and len(server.requests) <= 10


def test_after_a_refusal_the_conversation_can_go_on(story):
    with Server(say("One."), error(400, {"error": {"message": "bad request"}}), say("Three.")) as server:
        told = story(server)
        assert [told.say(text).status for text in ("first", "second", "third")] == ["done", "refused", "done"]
    assert sent(server)[-1][1].endswith("third")


def test_a_summary_that_is_a_call_is_no_summary(story):
    """The model goes on with the task where it should sum it up: neither is the call run nor the history lost."""
    script = (
        calls(ECHO),
        say("One."),
        OVERFLOW,
        calls(("run_shell_command", {"command": "touch X"})),
        say("They talked."),
    )
    with Server(*script, *[say("Two.")] * 3, prefix=False) as server:
        told = story(server)
        told.say("first")
        assert told.say("second").status == "done"
    assert not (told.agent.workspace.directory / "X").exists()
    assert "They talked." in sent(server)[0][1]


# ----------------------------------------------------------------------------------------------------- interruption


def stop_when(story, text, kind):
    """A turn that is stopped as soon as an event of this kind has come; gives back its Result."""
    for happened in story.agent.turn(text):
        story.events.append(happened)
        if type(happened).__name__ == kind:
            threading.Timer(0.2, story.agent.stopped.set).start()
    return happened


def test_interrupted_while_a_command_runs(story, workspace):
    sleep = ("run_shell_command", {"command": "echo asleep; sleep 30; touch X"})
    touch = ("run_shell_command", {"command": "touch Y"})
    with Server(calls(ECHO, sleep, touch, ids=["a", "b", "c"]), say("Fine.")) as server:
        told = story(server)
        began = time.monotonic()
        result = stop_when(told, "work", "ToolCalled")
        assert time.monotonic() - began < 3
        assert (result.status, result.exit_code) == ("interrupted", 130)
        assert told.say("hi").status == "done"
    answers = [text for role, text in sent(server) if role == "tool"]
    assert answers[0] == "exit code 0\nfrom-the-shell\n" and "asleep" in answers[1]
    assert "by the user" in answers[1] and answers[2] == NOT_RUN
    assert [role for role, _ in sent(server)] == ["user", "assistant", "tool", "tool", "tool", "user"]
    assert list(workspace.iterdir()) == []


def test_interrupted_while_the_model_speaks(story):
    half = event(chunk({"content": "I begin"}))
    with Server(raw(half, HANG), say("Fine.")) as server:
        told = story(server)
        assert stop_when(told, "work", "TextArrived").status == "interrupted"
        assert told.say("hi").status == "done"
    assert sent(server) == [("user", "work\n\nhi")]


def test_interrupted_while_it_waits(story):
    with Server(error(503, "", {"Retry-After": "60"}), say("Fine.")) as server:
        told = story(server)
        assert stop_when(told, "work", "Retrying").status == "interrupted"
        assert told.say("hi").status == "done"
    assert sent(server) == [("user", "work\n\nhi")]


def test_interrupted_in_a_summary_nothing_is_lost(story):
    with Server(say("One."), OVERFLOW, raw(HANG), OVERFLOW, say("They talked."), say("Three."), prefix=False) as server:
        told = story(server)
        told.say("first")
        assert stop_when(told, "second", "Noticed").status == "interrupted"
        assert [m["content"] for m in told.agent.session.messages] == ["first", "One.", "second"]
        assert told.say("third").status == "done"
    assert "third" in sent(server)[-1][1]


def test_a_turn_that_is_no_longer_watched_leaves_a_good_history(story):
    with Server(calls(ECHO, ECHO), say("Fine.")) as server:
        told = story(server)
        for happened in (turn := told.agent.turn("work")):
            if type(happened).__name__ == "ToolCalled":
                break
        turn.close()
        assert told.say("hi").status == "done"
    assert [role for role, _ in sent(server)] == ["user", "assistant", "tool", "tool", "user"]


# ------------------------------------------------------------------------------------------------------- the journal


def test_each_fact_is_on_disk_before_what_follows_from_it(story):
    """The call before the command runs, its result before the next request."""
    journal = "$TINYAGENT_HOME/work/sessions/test.jsonl"
    seen = []

    def look(request):
        seen.append([json.loads(line)["type"] for line in path.read_bytes().split(b"\n") if line])
        return calls(("run_shell_command", {"command": f"tail -n 1 {journal}"})) if len(seen) == 1 else say("Done.")

    with Server(look, look) as server:
        told = story(server)
        path = Path(told.agent.session.path)
        told.say("go")
    assert seen == [["opened", "user_said"], ["opened", "user_said", "model_replied", *RAN_FACTS]]
    assert json.loads(told.results()[0].partition("\n")[2])["type"] == "tool_called"


def test_several_agents_in_one_process(tmp_path):
    """Each has its directory, its session and its thread."""
    answers = {}

    def work(name):
        (tmp_path / name).mkdir()
        with Server(calls(("run_shell_command", {"command": "pwd"})), say(f"I am {name}.")) as server:
            config = Config(base_url=server.url, model="scripted")
            session = Session(tmp_path / "home" / name / "sessions" / "s.jsonl")
            told = Story(Agent(config, tmp_path / name, session, Model(config).chat))
            answers[name] = told.say("who are you?").text, told.results()[0].splitlines()[-1]

    threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {name: (f"I am {name}.", str((tmp_path / name).resolve())) for name in ("a", "b", "c")}
