"""The other API: the Responses API, found by itself, and the same facts and statuses as on the first."""

import json
from dataclasses import replace

import pytest
from conftest import of, result, turn
from scripted import (
    CHAT,
    CUT,
    RESET,
    RESPONSES,
    Server,
    calls,
    chunk,
    error,
    event,
    happened,
    raw,
    response,
    say,
    stream,
)
from scripted import breaches as faults_of

from tinyagent import Config, Learned, Model, Retrying, TextArrived, Trouble, as_chunk, as_responses

NOT_HERE = error(400, {"error": {
    "message": "Function tools with reasoning_effort are not supported for gpt-6-sol in /v1/chat/completions. To use "
    "function tools, use /v1/responses or set reasoning_effort to 'none'.",
    "type": "invalid_request_error", "param": "reasoning_effort", "code": None}})  # fmt: skip
ECHO = ("run_shell_command", {"command": "echo from-the-shell"})
FIGURES = {"input_tokens": 50, "input_tokens_details": {"cached_tokens": 40}, "output_tokens": 30,
           "output_tokens_details": {"reasoning_tokens": 20}, "total_tokens": 80}  # fmt: skip
COUNTED = {"prompt_tokens": 50, "cached_tokens": 40, "completion_tokens": 30, "reasoning_tokens": 20}
REQUEST = {"messages": [{"role": "system", "content": "You test."}, {"role": "user", "content": "hi"}]}


@pytest.fixture(autouse=True)
def chance(monkeypatch):
    """Chance has it that the waits are short."""
    monkeypatch.setattr("random.uniform", lambda low, high: 0.005)


def shown(events):
    return "".join(e.text for e in of(TextArrived, events))


def paths(server):
    return [request.path for request in server.requests]


def items(server, number=-1):
    """The input of a request after the system's and the user's first message."""
    return server.requests[number].body["input"][2:]


def output(reply):
    """The items of a reply, as the server made them."""
    return reply.parts[-1].last["response"]["output"]


# ---------------------------------------------------------------------------------------------- which API is used


def test_the_api_is_found_by_itself_and_remembered(agent):
    script = NOT_HERE, response(calls=[ECHO]), response("Done."), response("Again."), response("Resumed.")
    with Server(*script) as server:
        first = agent(server, reasoning_effort="high")
        events = turn(first)
        assert (events[-1].status, events[-1].text, shown(events)) == ("done", "Done.", "Done.")
        assert [(e.what, e.value) for e in of(Learned, events)] == [("api", "responses")] and not of(Retrying, events)
        assert result(first, "again").text == "Again."
        assert result(agent(server, reasoning_effort="high"), "and again").text == "Resumed."
    assert paths(server) == [CHAT, *[RESPONSES] * 4]
    assert server.requests[1].body["reasoning"]["effort"] == "high"


def test_the_choice_is_in_the_journal(agent):
    with Server(NOT_HERE, response("Done.")) as server:
        told = agent(server)
        turn(told)
    facts = [json.loads(line) for line in told.session.path.read_bytes().splitlines()]
    assert [(f["what"], f["value"]) for f in facts if f["type"] == "learned"] == [("api", "responses")]


def test_a_session_goes_on_in_the_other_api(agent):
    """What was said and done in the first is there in the second."""
    with Server(calls(ECHO, text="I look."), say("One."), NOT_HERE, response("Two."), prefix=False) as server:
        told = agent(server)
        assert [result(told, text).text for text in ("first", "second")] == ["One.", "Two."]
    said, call, answer, one, second = items(server)
    assert (said["role"], said["content"], call["type"]) == ("assistant", "I look.", "function_call")
    assert answer["output"] == "exit code 0\nfrom-the-shell\n" and answer["call_id"] == call["call_id"]
    assert (one["content"], second["content"]) == ("One.", "second")


def test_forced_to_the_other_api(agent):
    with Server(response("Done."), error(400, NOT_HERE.parts[0])) as server:
        told = agent(server, api="responses")
        assert [result(told).status, result(told).status] == ["done", "refused"]
    assert paths(server) == [RESPONSES] * 2


def test_forced_to_the_first_api(agent):
    with Server(NOT_HERE) as server:
        end = result(agent(server, api="chat"))
    assert end.status == "refused" and "use /v1/responses" in end.text and paths(server) == [CHAT]


def test_what_the_user_forces_counts_more_than_what_was_learned(agent):
    with Server(NOT_HERE, response(calls=[ECHO]), response("One."), say("Two."), prefix=False) as server:
        assert result(agent(server)).text == "One."
        assert result(agent(server, api="chat")).text == "Two."
    assert "output" not in json.dumps(list(server.requests[-1].body["messages"][2]))


def test_reasoning_goes_to_its_own_server_alone(agent):
    with Server(response(calls=[ECHO]), response("One.")) as server:
        assert result(agent(server, api="responses")).text == "One."
    with Server(response("Two.")) as other:
        assert result(agent(other, api="responses"), "again").text == "Two."
    assert [item.get("type") for item in items(other)][:2] == ["function_call", "function_call_output"]


def test_another_server_is_asked_anew(agent):
    with Server(NOT_HERE, response("One.")) as server:
        assert result(agent(server)).text == "One."
    with Server(say("Two.")) as server:
        assert result(agent(server)).text == "Two."


# -------------------------------------------------------------------------------------------------- what is sent


def test_what_is_sent(agent):
    with Server(response("ok")) as server:
        told = agent(server, api="responses", max_output=500)
        turn(told)
    body = server.requests[0].body
    assert {name: body[name] for name in ("model", "stream", "store", "include", "max_output_tokens")} == {
        "model": "scripted", "stream": True, "store": False, "include": ["reasoning.encrypted_content"],
        "max_output_tokens": 500}  # fmt: skip
    assert [(item["role"], item["content"]) for item in body["input"]] == [
        ("system", told.session.system),
        ("user", "go"),
    ]
    assert [tool["name"] for tool in body["tools"]] == list(told.tools) and "reasoning" not in body


def test_items_go_back_as_they_came_also_after_a_resume(agent):
    replies = response("I look.", [ECHO, ECHO]), response("One."), response("Two."), response("Three.")
    with Server(*replies) as server:
        told = agent(server, api="responses")
        turn(told, "first"), turn(told, "second")
        turn(agent(server, api="responses"), "third")
    first, last = (output(reply) for reply in replies[:2])
    assert [item["type"] for item in first] == ["reasoning", "message", "function_call", "function_call"]
    assert items(server, 1)[:4] == first and items(server)[: len(items(server, 2))] == items(server, 2)
    assert items(server)[6:8] == last and items(server)[8] == {"role": "user", "content": "second"}
    answers = items(server)[4:6]
    assert [(a["call_id"], a["output"]) for a in answers] == [
        (call["call_id"], "exit code 0\nfrom-the-shell\n") for call in first[2:]
    ]


def test_interrupted_calls_are_answered_too(agent):
    with Server(response(calls=[ECHO, ECHO, ECHO]), response("Fine.")) as server:
        told = agent(server, api="responses")
        for happening in (events := told.turn("work")):
            if type(happening).__name__ == "ToolCalled":
                break
        events.close()
        assert result(told, "hi").text == "Fine."
    assert [item.get("type") for item in items(server)][4:7] == ["function_call_output"] * 3


def test_usage_stands_in_the_same_places(agent):
    with Server(response(calls=[ECHO], usage=FIGURES), response("Done.", usage=FIGURES)) as server:
        told = agent(server, api="responses", price="1,0.1,10")
        events = turn(told)
    replies = [e.usage for e in events if type(e).__name__ == "ModelReplied"]
    cost = (10 * 1 + 40 * 0.1 + 30 * 10) / 1e6
    assert [{k: v for k, v in usage.items() if k != "cost"} for usage in replies] == [COUNTED, COUNTED]
    assert [usage["cost"] for usage in replies] == [pytest.approx(cost)] * 2
    assert {**events[-1].usage, "cost": 0} == {**{k: 2 * v for k, v in COUNTED.items()}, "cost": 0}


def test_a_summary_is_made_in_the_same_way(agent):
    overflow = error(400, {"error": {"message": "too long", "code": "context_length_exceeded"}})
    script = response(calls=[ECHO]), response("One."), overflow, response("They talked."), response("Two.")
    with Server(*script, prefix=False) as server:
        told = agent(server, api="responses")
        assert [result(told, text).status for text in ("first", "second")] == ["done", "done"]
    assert "They talked." in server.requests[-1].body["input"][1]["content"]


# ------------------------------------------------------------------------------------------- how a reply may end

LIMIT = {"code": "rate_limit_exceeded", "message": "Rate limit reached for gpt-6-sol on tokens per min. Try again."}
TOO_LONG = {"code": "context_length_exceeded", "message": "Your input exceeds the context window of this model."}
INVALID = {"code": "invalid_prompt", "message": "Invalid prompt: limited access to this content for safety reasons."}
BROKEN = {"code": "server_error", "message": "The server had an error while processing your request."}
NO_QUOTA = {"code": "insufficient_quota", "message": "You exceeded your current quota, check your billing details."}
BEGUN = happened({"type": "response.output_text.delta", "output_index": 0, "delta": "half of it"})


def failing(kind, found):
    """A reply that begins and then fails, in one of the ways in which it is told."""
    if kind == "response.failed":
        end = response(status="failed", why=found).parts[-1].last
    elif kind == "error":
        end = {"type": "error", **found, "param": None, "sequence_number": 9}
    else:
        end = {"type": "error", "error": {"type": "error", **found, "param": None}}
    return raw(BEGUN, happened(end))


@pytest.mark.parametrize("kind", ["response.failed", "error", "error in an error"])
class TestErrors:
    @pytest.mark.parametrize("found", [LIMIT, BROKEN], ids=lambda found: found["code"])
    def test_what_may_pass_is_asked_for_again(self, agent, kind, found):
        with Server(failing(kind, found), response("whole")) as server:
            told = agent(server, api="responses")
            events = turn(told)
        (retry,) = of(Retrying, events)
        assert found["message"] in retry.reason and shown(events[events.index(retry) :]) == "whole"
        assert [m["content"] for m in told.session.messages] == ["go", "whole"]

    def test_what_is_too_long_is_compacted(self, agent, kind):
        script = response(calls=[ECHO]), response("One."), failing(kind, TOO_LONG), response("Sum."), response("Two.")
        with Server(*script, prefix=False) as server:
            told = agent(server, api="responses")
            assert [result(told, text).text for text in ("first", "second")] == ["One.", "Two."]

    @pytest.mark.parametrize("found", [INVALID, NO_QUOTA], ids=lambda found: found["code"])
    def test_what_is_refused_is_asked_once(self, agent, kind, found):
        with Server(failing(kind, found), response("whole")) as server:
            end = result(agent(server, api="responses"))
        assert end.status == "refused" and found["message"] in end.text and len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "found", "end"),
    [(429, LIMIT, "done"), (500, BROKEN, "done"), (400, INVALID, "refused"), (429, NO_QUOTA, "refused")],
)
def test_errors_before_the_stream(agent, status, found, end):
    with Server(error(status, {"error": found}), response("whole")) as server:
        assert result(agent(server, api="responses")).status == end


def test_a_refusal_is_shown_and_an_answer(agent):
    with Server(response(refusal="I cannot help with that.")) as server:
        events = turn(agent(server, api="responses"))
    assert shown(events) == "I cannot help with that." == events[-1].text and len(server.requests) == 1


def test_a_cut_text_is_gone_on_with(agent):
    script = response("One tw", status="incomplete"), response("o three."), response("Next.")
    with Server(*script, prefix=False) as server:
        told = agent(server, api="responses")
        events = turn(told)
        assert events[-1].text == "One two three." == shown(events)
        assert result(told, "next").text == "Next."
    assert [m["content"] for m in told.session.messages] == ["go", "One two three.", "next", "Next."]
    assert items(server)[:1] == [{"role": "assistant", "content": "One two three."}]


def cut_call(told):
    """A reply that is cut in a call, its item told to be done or not."""
    whole = response(calls=[("write_to_file", '{"path": "a", "content": "12')], status="incomplete")
    *parts, last = whole.parts
    return replace(whole, parts=(*(p for p in parts if told or b"output_item.done" not in p), last))


@pytest.mark.parametrize("told", [True, False])
def test_a_cut_call_is_answered_and_not_run(agent, workspace, told):
    with Server(cut_call(told), response("Done.")) as server:
        agent_ = agent(server, api="responses")
        events = turn(agent_)
    (answer,) = [e.text for e in events if type(e).__name__ == "ToolReturned"]
    assert "cut off" in answer and list(workspace.iterdir()) == [] and events[-1].status == "done"
    assert items(server)[-1]["output"] == answer


def test_a_content_filter_ends_the_turn(agent):
    with Server(response("How to", status="incomplete", why="content_filter"), response("ok")) as server:
        end = result(agent(server, api="responses"))
    assert end.status == "refused" and "How to" in end.text and len(server.requests) == 1


WHOLE = response("I look.", calls=[ECHO])


PLACES = [(kept, None) for kept in range(1, len(WHOLE.parts))]
PLACES += [(kept, accident) for kept in range(1, len(WHOLE.parts), 4) for accident in (RESET, CUT)]


@pytest.mark.parametrize(("kept", "accident"), PLACES)
def test_a_stream_that_breaks_off_anywhere_is_asked_for_again(agent, kept, accident):
    """Nothing of it is kept, and no call of it is run."""
    parts = [*WHOLE.parts[:kept], *([accident] if accident else [])]
    with Server(raw(*parts, framing="chunked" if accident else "close"), response("whole")) as server:
        told = agent(server, api="responses")
        events = turn(told)
    assert len(of(Retrying, events)) == 1 and [m["content"] for m in told.session.messages] == ["go", "whole"]


ARGUMENTS = {
    "broken": '{"command": "touch X',
    "a list": '["touch X"]',
    "null": "null",
    "not those of the tool": '{"order": "touch X"}',
}


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
def test_broken_arguments_are_an_answer_and_the_history_stays_valid(agent, workspace, arguments):
    script = response("I look.", [ECHO, ("run_shell_command", arguments)]), response("Done."), response("Resumed.")
    with Server(*script) as server:
        assert result(agent(server, api="responses")).status == "done"
        assert result(agent(server, api="responses"), "again").text == "Resumed."
    first, second = (item["output"] for item in items(server) if item.get("type") == "function_call_output")
    assert first == "exit code 0\nfrom-the-shell\n" and second.startswith("error: ")
    assert list(workspace.iterdir()) == []


ODD = {
    "a line end in a string": ("run_shell_command", '{"command": "echo ran\n"}'),
    "encoded twice": ("run_shell_command", json.dumps('{"command": "echo ran"}')),
    "empty": ("list_files", ""),
    "junk after the name": ("run_shell_command<|channel|>commentary", '{"command": "echo ran"}'),
    "an unknown tool": ("os.system", '{"command": "echo ran"}'),
}


@pytest.mark.parametrize("call", ODD.values(), ids=ODD)
def test_odd_calls_leave_a_history_that_servers_take(agent, call):
    with Server(response("I look.", [call]), response("Done.")) as server:
        assert result(agent(server, api="responses")).status == "done"


@pytest.mark.parametrize("ids", [["a", "a"], ["", "b"], ["", ""]])
def test_odd_ids_leave_a_history_that_servers_take(agent, ids):
    with Server(response("I look.", [ECHO, ECHO], ids=ids), response("Done.")) as server:
        assert result(agent(server, api="responses")).status == "done"


@pytest.mark.parametrize("name", ["include", "store", "reasoning", "max_output_tokens"])
def test_a_refused_field_is_left_out_from_then_on(agent, name):
    refusal = error(400, {"error": {"message": f"Unknown parameter: '{name}'.", "param": name}})
    with Server(refusal, response("One."), response("Two."), check=False) as server:
        told = agent(server, api="responses", reasoning_effort="low", max_output=9)
        assert [result(told, text).text for text in ("first", "second")] == ["One.", "Two."]
    assert [name in request.body for request in server.requests] == [True, False, False]


def test_a_word_in_an_error_that_is_also_a_field_changes_nothing(agent):
    refusal = error(400, {"error": {"message": "The store must include a reasoning model.", "param": None}})
    with Server(refusal, *[refusal] * 5) as server:
        assert result(agent(server, api="responses")).status == "refused"


# ---------------------------------------------------------------------------------------------- the two functions

TOOL = {"type": "function", "function": {"name": "f", "description": "F.", "parameters": {"type": "object"}}}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
OUTPUT = [
    {"type": "reasoning", "id": "rs_1", "encrypted_content": "opaque", "summary": []},
    {"type": "function_call", "id": "fc_1", "call_id": "b", "name": "f", "arguments": "{}"},
]
HISTORY = [
    *REQUEST["messages"],
    {"role": "assistant", "content": "I look.", "tool_calls": [CALL], "reasoning_content": "Hm."},
    {"role": "tool", "tool_call_id": "a", "content": "1"},
    {"role": "assistant", "content": "", "tool_calls": [CALL | {"id": "b"}], "output": OUTPUT},
    {"role": "tool", "tool_call_id": "b", "content": "2"},
    {"role": "assistant", "content": "Done."},
    {"role": "user", "content": "and?"},
]


def test_a_request_in_the_other_shape():
    body = {"model": "m", "messages": HISTORY, "stream": True, "tools": [TOOL], "reasoning_effort": "low"}
    before = json.dumps(body)
    made = as_responses(body | {"max_tokens": 9, "stream_options": {"include_usage": True}})
    assert json.dumps(body) == before and faults_of(made) == []
    assert made["input"] == [
        {"role": "system", "content": "You test."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "I look."},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "1"},
        *OUTPUT,
        {"type": "function_call_output", "call_id": "b", "output": "2"},
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "and?"},
    ]
    (tool,) = made["tools"]
    assert {key: tool[key] for key in ("type", "name", "description", "parameters")} == {
        "type": "function", **TOOL["function"]}  # fmt: skip
    assert (made["reasoning"], made["max_output_tokens"]) == ({"effort": "low"}, 9)
    assert {"messages", "stream_options", "reasoning_effort", "max_tokens"}.isdisjoint(made)


def test_a_request_without_the_optional_fields():
    made = as_responses({"model": "m", "messages": REQUEST["messages"], "stream": True})
    assert set(made) == {"model", "input", "stream", "store", "include"}
    assert as_responses({"model": "m", "messages": [], "max_completion_tokens": 7})["max_output_tokens"] == 7


def spoiled(change):
    """What is found in a good request of which this has been done to the input, or to the whole."""
    made = json.loads(json.dumps(as_responses({"model": "m", "messages": HISTORY, "tools": [TOOL]})))
    change(made["input"], made)
    return "\n".join(faults_of(made))


SPOILED = {  # the fault that is found -> how it gets there
    "store is": lambda items, body: body.update(store=True),
    "encrypted reasoning is not asked for": lambda items, body: body.pop("include"),
    "no parameter max_tokens": lambda items, body: body.update(max_tokens=9),
    "is no tool": lambda items, body: body.update(tools=[TOOL]),
    "unknown role": lambda items, body: items.append({"role": "developer", "content": "x"}),
    "unknown type": lambda items, body: items.append({"type": "thought"}),
    "it is empty": lambda items, body: items.append({"role": "assistant", "content": ""}),
    "no encrypted content": lambda items, body: items[5].pop("encrypted_content"),
    "not followed by": lambda items, body: items[5].update(encrypted_content="opaque/fc_2"),
    "the reasoning is not followed": lambda items, body: items.append(items.pop(5)),
    "before it have no answer": lambda items, body: items.pop(7),
    "at the end have no answer": lambda items, body: items.append(items[3]),
    "where [] is due": lambda items, body: items.append(items[4]),
    "is there twice": lambda items, body: items.insert(3, items[3]),
    "no JSON of an object": lambda items, body: items[3].update(arguments="{"),
    "the output is no text": lambda items, body: items[4].update(output=None),
    "first message is not the system's": lambda items, body: items.pop(0),
    "both the user's": lambda items, body: items.insert(1, items[1]),
}


@pytest.mark.parametrize(("fault", "change"), SPOILED.items(), ids=SPOILED)
def test_the_server_notices_a_broken_request(fault, change):
    assert fault in spoiled(change)


def delta_of(chunk):
    return chunk["choices"][0]["delta"]


@pytest.mark.parametrize("kind", ["response.output_text.delta", "response.refusal.delta"])
def test_text_as_a_chunk(kind):
    assert delta_of(as_chunk({"type": kind, "delta": "ok", "output_index": 1})) == {"content": "ok"}


@pytest.mark.parametrize("change", ["twice", "order"])
def test_items_in_another_order_do_not_go_back(agent, change):
    """A server that gets sealed reasoning without what follows it refuses the request, and all after it."""
    made = response("A text.", [ECHO])
    parts = [part if isinstance(part, bytes) else happened(part.last) for part in made.parts]
    done = [i for i, part in enumerate(parts) if b"output_item.done" in part]
    parts.insert(done[-1] + 1, parts[done[0]])
    if change == "order":
        del parts[done[0]]
    with Server(NOT_HERE, raw(*parts), response("Done.")) as server:
        assert result(agent(server)).status == "done"
    assert [item.get("type", "message") for item in items(server)] == [
        "message",
        "function_call",
        "function_call_output",
    ]


UNFIT = {  # kind of an item, and what is done to it
    "no seal": ("reasoning", lambda item: item.pop("encrypted_content")),
    "the seal is null": ("reasoning", lambda item: item.update(encrypted_content=None)),
    "the seal is a number": ("reasoning", lambda item: item.update(encrypted_content=5)),
    "no summary": ("reasoning", lambda item: item.pop("summary")),
    "another kind": ("reasoning", lambda item: item.update(type="thinking")),
    "no kind": ("reasoning", lambda item: item.pop("type")),
    "a list for a kind": ("reasoning", lambda item: item.update(type=[])),
    "another role": ("message", lambda item: item.update(role=" assistant")),
    "no role": ("message", lambda item: item.pop("role")),
    "no id": ("message", lambda item: item.pop("id")),
    "a part of no kind": ("message", lambda item: item["content"][0].pop("type")),
    "a part that is a number": ("message", lambda item: item["content"].append(7)),
    "a name that is null": ("function_call", lambda item: item.update(name=None)),
}


@pytest.mark.parametrize(("kind", "change"), UNFIT.values(), ids=UNFIT)
def test_items_that_are_not_as_the_api_has_them_do_not_go_back(agent, kind, change):
    parts = [*response("A text.", [ECHO]).parts]
    for place, part in enumerate(parts[:-1]):
        data = json.loads(part.partition(b"data: ")[2])
        if data["type"] == "response.output_item.done" and data["item"]["type"] == kind:
            change(data["item"])
            parts[place] = happened(data)
    with Server(NOT_HERE, raw(*parts[:-1], happened(parts[-1].last)), response("Done.")) as server:
        assert result(agent(server)).status == "done"
    assert [item.get("type", "message") for item in items(server)][:1] == ["message"]


def test_reasoning_that_a_server_does_not_take_is_left_out_from_then_on(agent):
    unfit = error(400, {"error": {"message": "Item 'rs_1' of type 'reasoning' came without its item."}})
    script = NOT_HERE, response(calls=[ECHO]), unfit, response("Done."), response("Again.")
    with Server(*script, prefix=False) as server:
        told = agent(server)
        assert [result(told).status, result(told).status] == ["done", "done"]
    assert not [item for item in items(server) if item.get("type") == "reasoning"] and len(server.requests) == 5


def test_items_as_chunks():
    thought, call = (
        as_chunk({"type": "response.output_item.done", "output_index": i, "item": item})
        for i, item in enumerate(OUTPUT)
    )
    assert delta_of(thought) == {} and thought["item"] == (0, OUTPUT[0])
    (fragment,) = delta_of(call)["tool_calls"]
    assert call["item"] == (1, OUTPUT[1]) and fragment["id"] == "b"
    assert (fragment["function"]["name"], fragment["function"]["arguments"]) == ("f", "{}")


@pytest.mark.parametrize(
    ("status", "why", "finish"),
    [
        ("completed", None, "stop"),
        ("incomplete", "max_output_tokens", "length"),
        ("incomplete", "content_filter", "content_filter"),
        ("incomplete", None, "length"),
    ],
)
def test_ends_as_chunks(status, why, finish):
    made = {"status": status, "incomplete_details": {"reason": why} if why else None, "usage": FIGURES}
    assert as_chunk({"type": f"response.{status}", "response": made})["choices"][0]["finish_reason"] == finish


def test_a_failure_as_a_chunk():
    assert as_chunk({"type": "response.failed", "response": {"error": LIMIT}})["error"] == LIMIT
    assert as_chunk({"type": "response.failed", "response": {"error": None, "status": "failed"}})["error"]


PASSED_ON = [{}, chunk({"content": "ok"}), {"error": "boom"}, {"type": "error", **LIMIT}, {"type": 5}, {"type": "ping"}]


@pytest.mark.parametrize("other", PASSED_ON, ids=str)
def test_what_is_of_no_responses_stays_as_it_is(other):
    assert as_chunk(other) == other


KINDS = "created in_progress output_item.added output_item.done output_text.delta refusal.delta x completed incomplete"
KINDS += " reasoning_summary_text.delta function_call_arguments.delta failed"


@pytest.mark.parametrize("value", [None, 5, "text", [], {}, [None]], ids=str)
def test_nonsense_is_never_fatal(value):
    """A stream of it is a broken reply, asked for again."""
    events = [{"type": f"response.{kind}", "delta": value, "item": value, "response": value} for kind in KINDS.split()]
    for one in events:
        assert isinstance(as_chunk(one), dict)
    alone = [one for one in events if not one["type"].endswith(("completed", "incomplete", "failed"))]
    with Server(stream(*alone, done=False), response("whole")) as server:
        asking = Model(Config(base_url=server.url, model="scripted", api="responses")).chat(REQUEST, lambda: None)
        with pytest.raises(StopIteration) as end:
            while True:
                next(asking)
    assert end.value.value.message["content"] == "whole"


def test_an_answer_without_its_end_mark_is_asked_for_again(agent):
    """And one that ends so twice is taken, as on the first API."""
    half = raw(event(chunk({})), BEGUN)
    with Server(half, half) as server:
        asking = Model(Config(base_url=server.url, model="scripted", api="responses")).chat(REQUEST, lambda: None)
        with pytest.raises((StopIteration, Trouble)) as end:
            while True:
                next(asking)
    assert end.value.value.message["content"] == "half of it"
