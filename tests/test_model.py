"""The chat-completion wrapper against every kind of server: what it understands, asks again, and gives up."""

import json
import re
import threading
import time
from contextlib import closing

import pytest
from scripted import CUT, HANG, RESET, Server, breaches, calls, chunk, error, event, raw, say, stream

from tinyagent import Config, Model, Retrying, TextArrived, Trouble

pytestmark = pytest.mark.filterwarnings("error::UserWarning")  # a warning would stand on the user's screen
REQUEST = {"messages": [{"role": "system", "content": "You test."}, {"role": "user", "content": "hi"}]}
KEY = "sk-secret-0123456789"


@pytest.fixture(autouse=True)
def chance(monkeypatch):
    """Chance has it that the waits are short."""
    monkeypatch.setattr("random.uniform", lambda low, high: 0.005)


def chat(server, request=REQUEST, check=lambda: None, **more):
    """The events of an exchange, and the reply."""
    events, asking = [], Model(Config(base_url=server.url, model="scripted", **more)).chat(request, check)
    while True:
        try:
            events.append(next(asking))
        except StopIteration as end:
            return events, end.value


def first_event(server, **more):
    """What happens first in an exchange, which is then left."""
    with closing(Model(Config(base_url=server.url, model="scripted", **more)).chat(REQUEST, lambda: None)) as asking:
        return next(asking)


def trouble(server, **more):
    """The Trouble in which an exchange ends."""
    with pytest.raises(Trouble) as caught:
        chat(server, **more)
    return caught.value


def shown(events):
    return "".join(e.text for e in events if isinstance(e, TextArrived))


def retries(events):
    return [e for e in events if isinstance(e, Retrying)]


def called(reply):
    """Name and arguments of the calls in a reply."""
    functions = [call["function"] for call in reply.message.get("tool_calls", [])]
    return [(function["name"], json.loads(function["arguments"])) for function in functions]


# ----------------------------------------------------------------------------------------------------- what is sent


def test_what_is_sent():
    request = {**REQUEST, "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}
    with Server(say("ok")) as server:
        events, reply = chat(server, request, api_key=KEY)
    sent = server.requests[0]
    assert sent.path == "/v1/chat/completions" and sent.headers["authorization"] == f"Bearer {KEY}"
    options = {"model": "scripted", "stream": True, "stream_options": {"include_usage": True}}
    assert sent.body == {**request, **options}
    assert shown(events) == "ok" and reply.message == {"role": "assistant", "content": "ok"}


def test_reasoning_effort_is_passed_on_when_set():
    with Server(say("ok")) as server:
        chat(server, reasoning_effort="low")
    assert server.requests[0].body["reasoning_effort"] == "low"


def test_text_arrives_while_it_is_written():
    with Server(raw(event(chunk({"content": "One"})), HANG)) as server:
        asking = Model(Config(base_url=server.url, model="scripted")).chat(REQUEST, lambda: None)
        assert next(asking).text == "One"
        asking.close()


# ---------------------------------------------------------------------------------------------- well and badly made

STOP, CALLED = chunk({}, "stop"), chunk({}, "tool_calls")
OK, EMPTY = chunk({"content": "ok"}), {**STOP, "choices": []}
TOLD = {**EMPTY, "usage": {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}}}
COUNTED = {"prompt_tokens": 5, "cached_tokens": 3, "completion_tokens": 2}
NOTHING = {"prompt_tokens": 0, "cached_tokens": 0, "completion_tokens": 0}

ANSWER = {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
WHOLE = {**TOLD, "object": "chat.completion", "choices": [ANSWER]}


def part(*fragments, **more):
    """A chunk with fragments of tool calls."""
    return chunk({"tool_calls": list(fragments)}, **more)


def head(index=0, id="a", name="f", arguments='{"x": ', **more):
    """The first fragment of a call; what is ... is left out."""
    given = {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": arguments}, **more}
    return {key: value for key, value in given.items() if value is not ...}


def rest(index=0, arguments="1}", **more):
    """The second fragment of a call."""
    return {k: v for k, v in {"index": index, "function": {"arguments": arguments}, **more}.items() if v is not ...}


def without(name, *chunks):
    """The chunks without this key, in themselves and in their choices."""
    whole = [
        {**c, "choices": [{k: v for k, v in choice.items() if k != name} for choice in c["choices"]]} for c in chunks
    ]
    return [{k: v for k, v in c.items() if k != name} for c in whole]


CRLF = b"".join(event(c).replace(b"\n", b"\r\n") for c in (OK, STOP, TOLD)) + b"data: [DONE]\r\n\r\n"
NO_SPACE = b"".join(event(c).replace(b"data: ", b"data:") for c in (OK, STOP, TOLD)) + b"data:[DONE]\n\n"
TEXTS = {  # a stream -> the usage it tells; its text is "ok"
    "well made": (stream(OK, STOP, TOLD), COUNTED),
    "choices empty first": (stream(EMPTY, OK, STOP, TOLD), COUNTED),
    "object empty": (stream(*({**c, "object": ""} for c in (OK, STOP, TOLD))), COUNTED),
    "object missing": (stream(*without("object", OK, STOP, TOLD)), COUNTED),
    "usage with the last choice": (stream(OK, {**TOLD, **STOP}), COUNTED),
    "usage in every chunk": (stream({**TOLD, **OK}, {**TOLD, **STOP}, TOLD), COUNTED),
    "usage missing": (stream(OK, STOP), NOTHING),
    "usage, then usage null": (stream(OK, STOP, TOLD, {**EMPTY, "usage": None}), COUNTED),
    "usage with nulls": (stream(OK, STOP, {**EMPTY, "usage": {"prompt_tokens": 5, "completion_tokens": None}}),
                         {**NOTHING, "prompt_tokens": 5}),
    "usage details null": (stream(OK, STOP, {**EMPTY, "usage": {"prompt_tokens": 5, "prompt_tokens_details": None}}),
                           {**NOTHING, "prompt_tokens": 5}),
    "no [DONE]": (stream(OK, STOP, TOLD, done=False), COUNTED),
    "comments": (stream(": ping\n\n", OK, ": OPENROUTER PROCESSING\n\n", STOP, TOLD), COUNTED),
    "line ends of two bytes": (raw(CRLF), COUNTED),
    "no space after data:": (raw(NO_SPACE), COUNTED),
    "choices null": (stream({**OK, "choices": None}, OK, STOP, {**TOLD, "choices": None}), COUNTED),
    "choices missing": (stream(OK, STOP, {"usage": TOLD["usage"]}), COUNTED),
    "index of the choice missing": (stream(*without("index", OK, STOP, TOLD)), COUNTED),
    "delta null at the end": (stream(OK, chunk(None, "stop"), TOLD), COUNTED),
    "delta missing at the end": (stream(OK, *without("delta", STOP), TOLD), COUNTED),
    "finish_reason missing": (stream(*without("finish_reason", OK, STOP), TOLD), COUNTED),
    "finish_reason unknown": (stream(OK, chunk({}, "eos"), TOLD), COUNTED),
    "finish_reason empty": (stream(OK, chunk({}, ""), TOLD), COUNTED),
    "content as parts": (stream(chunk({"content": [{"type": "text", "text": t} for t in "ok"]}), STOP), NOTHING),
    "content null": (stream(chunk({"content": None}), OK, STOP, TOLD), COUNTED),
    "bad UTF-8": (stream(b'data: {"a": "\xff"}\n\n', OK, STOP, TOLD), COUNTED),
    "empty data": (stream("data:\n\n", OK, "data: \n\n", STOP, TOLD), COUNTED),
    "an event without data": (stream("event: x\n\n", OK, STOP, TOLD), COUNTED),
    "retry alone": (stream("retry: 1000\n\n", OK, STOP, TOLD), COUNTED),
    "a blank line after id": (stream("id: 1\n\n", OK, "id: 2\n\n", STOP, TOLD), COUNTED),
    "an event of two lines": (stream('data: {"choices":\ndata: []}\n\n', OK, STOP, TOLD), COUNTED),
    "a mark of the byte order first": (stream(b"\xef\xbb\xbf", OK, STOP, TOLD), COUNTED),
    "line ends of old": (raw(CRLF.replace(b"\r\n", b"\r")), COUNTED),
    "data: null": (stream("data: null\n\n", OK, STOP, TOLD), COUNTED),
    "data: []": (stream("data: []\n\n", OK, STOP, TOLD), COUNTED),
    "data: a string": (stream('data: "text"\n\n', OK, STOP, TOLD), COUNTED),
    "message instead of delta": (stream(WHOLE), COUNTED),
    "the last event without its blank line": (raw(event(OK) + event(STOP) + event(TOLD)[:-2], framing="close"), None),
    "a completion in one piece": (raw(json.dumps(WHOLE), content_type="application/json", framing="length"), COUNTED),
}  # fmt: skip


@pytest.mark.parametrize(("reply", "usage"), TEXTS.values(), ids=TEXTS)
def test_texts(reply, usage):
    with Server(reply, reply) as server:
        _, got = chat(server)
    assert got.message == {"role": "assistant", "content": "ok"}
    assert got.faults == {}
    assert usage is None or got.usage == usage


ONE, TWO = ("f", {"x": 1}), ("g", {"y": 2})
TWO_WRITTEN = "g", '{"y": 2}'
SECOND = head(1, "b", *TWO_WRITTEN)
CALLS = {  # a stream -> the calls in it
    "well made": (stream(part(head()), part(rest()), CALLED), [ONE]),
    "index missing": (stream(part(head(...)), part(rest(...)), part({**SECOND, "index": None}), CALLED), [ONE, TWO]),
    "index missing, calls whole": (stream(part(head(..., arguments='{"x": 1}')), part(head(..., "b", *TWO_WRITTEN)),
                                          CALLED), [ONE, TWO]),
    "index null": (stream(part(head(None)), part(rest(None)), CALLED), [ONE]),
    "both index 0": (stream(part(head()), part(rest()), part({**SECOND, "index": 0}), CALLED), [ONE, TWO]),
    "both index 0, in pieces": (stream(part(head()), part(rest()), part(head(0, "b", "g", '{"y"')),
                                       part(rest(0, ": 2}")), CALLED), [ONE, TWO]),
    "index from 1": (stream(part(head(1)), part(rest(1)), CALLED), [ONE]),
    "index with a gap": (stream(part(head()), part(rest()), part({**SECOND, "index": 2}), CALLED), [ONE, TWO]),
    "index a string": (stream(part(head("0")), part(rest("0")), CALLED), [ONE]),
    "indices mixed": (stream(part(head(), SECOND), part(rest()), CALLED), [ONE, TWO]),
    "id repeated": (stream(part(head()), part(rest(id="a")), CALLED), [ONE]),
    "id changes later": (stream(part(head()), part(rest(id="other")), CALLED), [ONE]),
    "name repeated": (stream(part(head()), part(rest(function={"name": "f", "arguments": "1}"})), CALLED), [ONE]),
    "id empty later": (stream(part(head()), part(rest(id="")), CALLED), [ONE]),
    "id missing": (stream(part(head(id=...)), part(rest()), CALLED), [ONE]),
    "ids missing": (stream(part(head(id=...)), part(rest()), part({**SECOND, "id": ""}), CALLED), [ONE, TWO]),
    "id only in the second delta": (stream(part(head(id=...)), part(rest(id="a")), CALLED), [ONE]),
    "the same id twice": (stream(part(head()), part(rest()), part({**SECOND, "id": "a"}), CALLED), [ONE, TWO]),
    "id, name and type null later": (stream(part(head()), part(
        {"index": 0, "id": None, "type": None, "function": {"name": None, "arguments": "1}"}}), CALLED), [ONE]),
    "arguments null first": (stream(part(head(arguments=None)), part(rest(arguments='{"x": 1}')), CALLED), [ONE]),
    "arguments null always": (stream(part(head(arguments=None)), CALLED), [("f", {})]),
    "arguments an object": (stream(part(head(arguments={"x": 1})), CALLED), [ONE]),
    "function missing in a delta": (stream(part(head()), part({"index": 0}), part(rest()), CALLED), [ONE]),
    "type missing": (stream(part(head(type=...)), part(rest()), CALLED), [ONE]),
    "finish_reason stop": (stream(part(head()), part(rest()), STOP), [ONE]),
    "finish_reason missing": (stream(part(head()), part(rest())), [ONE]),
    "finish_reason length, calls whole": (stream(part(head()), part(rest()), chunk({}, "length")), [ONE]),
    "junk after the name": (stream(part(head(name="f<|channel|>commentary")), part(rest()), CALLED), [ONE]),
    "encoded twice": (stream(part(head(arguments=json.dumps('{"x": 1}'))), CALLED), [ONE]),
    "line ends in a string": (stream(part(head(arguments='{"x": "a\n\tb"}')), CALLED), [("f", {"x": "a\n\tb"})]),
    "message instead of delta": (stream({**CALLED, "choices": [{"message": {"tool_calls": [
        head(..., arguments='{"x": 1}')]}, "finish_reason": "stop"}]}), [ONE]),
}  # fmt: skip


@pytest.mark.parametrize(("reply", "expected"), CALLS.values(), ids=CALLS)
def test_calls(reply, expected):
    with Server(reply, reply) as server:
        _, got = chat(server)
    assert (called(got), got.faults) == (expected, {})
    ids = [call["id"] for call in got.message["tool_calls"]]
    assert len(set(ids)) == len(ids) and all(ids)
    assert got.message["content"] == ""


def test_ids_are_kept_and_missing_ones_made():
    with Server(calls(("f", {}), ("g", {}), ids=["one", ""])) as server:
        _, reply = chat(server)
    first, second = (call["id"] for call in reply.message["tool_calls"])
    assert first == "one" and re.fullmatch("[a-zA-Z0-9]{9}", second)


def test_text_between_and_after_calls():
    parts = (
        chunk({"content": "a"}),
        part(head()),
        chunk({"content": "b"}),
        part(rest()),
        chunk({"content": "c"}),
        CALLED,
    )
    with Server(stream(*parts)) as server:
        events, reply = chat(server)
    assert (shown(events), reply.message["content"], called(reply)) == ("abc", "abc", [ONE])


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_is_kept_to_be_sent_back_and_not_shown(name):
    with Server(stream(chunk({name: "Let "}), chunk({name: "me see."}), OK, STOP)) as server:
        events, reply = chat(server)
    assert reply.message == {"role": "assistant", "content": "ok", name: "Let me see."}
    assert shown(events) == "ok"


@pytest.mark.parametrize(("halves", "text"), [(["\ud83d", "\ude00"], "😀"), (["a\ud83d", "b"], "a\ufffdb")])
def test_halves_of_surrogate_pairs(halves, text):
    with Server(stream(*(chunk({"content": half}) for half in halves), STOP)) as server:
        events, reply = chat(server)
    assert reply.message["content"] == text
    shown(events).encode()  # raises where a half is left


def test_nuls_are_left_out():
    with Server(stream(chunk({"content": "a\0b"}), STOP)) as server:
        events, reply = chat(server)
    assert (reply.message["content"], shown(events)) == ("ab", "ab")


def nonsense(delta, **more):
    return stream({**OK, "choices": [{"index": 0, "delta": delta, "finish_reason": "stop"}], **more})


NONSENSE = {
    "choices an object": nonsense({}, choices={"0": 1}),
    "choices of null": nonsense({}, choices=[None]),
    "choices of text": nonsense({}, choices=["ok"]),
    "delta a text": nonsense("ok"),
    "delta a list": nonsense([]),
    "content a number": nonsense({"content": 5}),
    "content an object": nonsense({"content": {"text": "ok"}}),
    "content of null": nonsense({"content": [None]}),
    "content of texts": nonsense({"content": ["ok"]}),
    "content of numbers": nonsense({"content": [{"text": 5}]}),
    "calls an object": nonsense({"tool_calls": {"index": 0}}),
    "calls of null": nonsense({"tool_calls": [None]}),
    "calls of text": nonsense({"tool_calls": ["f"]}),
    "index a list": nonsense({"tool_calls": [head([0])]}),
    "id a number": nonsense({"tool_calls": [head(id=5, arguments="{}")]}),
    "name a number": nonsense({"tool_calls": [head(name=5, arguments="{}")]}),
    "name an object": nonsense({"tool_calls": [head(name={}, arguments="{}")]}),
    "function a text": nonsense({"tool_calls": [head(function="f")]}),
    "arguments a number": nonsense({"tool_calls": [head(arguments=5)]}),
    "finish_reason a number": nonsense({"content": "ok"}, choices=[{"delta": {"content": "ok"}, "finish_reason": 5}]),
    "usage a text": nonsense({"content": "ok"}, usage="5"),
    "usage a list": nonsense({"content": "ok"}, usage=[5]),
    "usage of texts": nonsense({"content": "ok"}, usage={"prompt_tokens": "many"}),
    "deep": raw(b"data: " + b"[" * 100_000 + b"]" * 100_000 + b"\n\n"),
}


@pytest.mark.parametrize("reply", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_understood_or_asked_for_again(reply):
    with Server(reply, say("whole")) as server:
        _, got = chat(server)
    answers = [{"role": "tool", "tool_call_id": c["id"], "content": ""} for c in got.message.get("tool_calls", [])]
    assert breaches({"messages": [*REQUEST["messages"], got.message, *answers]}) == []
    json.loads(got.to_json())


FAULTY = {
    "the first half": '{"x": "1',
    "something after it": '{"x": 1} and more',
    "twice": '{"x": 1}{"x": 1}',
    "null": "null",
    "a list": "[]",
    "a number": "5",
    "text": "ls",
    "a list, encoded twice": '"[]"',
}


@pytest.mark.parametrize("arguments", FAULTY.values(), ids=FAULTY)
def test_faulty_arguments_are_named_and_never_mended(arguments):
    with Server(calls(("f", arguments), ("g", {"y": 2}))) as server:
        _, reply = chat(server)
    assert called(reply) == [("f", {}), TWO]
    assert list(reply.faults) == [reply.message["tool_calls"][0]["id"]]


def test_arguments_cut_at_the_output_limit():
    with Server(calls(("f", '{"x": "1'), finish="length")) as server:
        _, reply = chat(server)
    assert called(reply) == [("f", {})]
    assert ["cut off" in fault for fault in reply.faults.values()] == [True]


DETAIL = {"type": "reasoning.text", "text": "Let ", "format": "some-v1"}
SIGNED = {"type": "reasoning.text", "signature": "c2ln"}
DETAILS = {  # reasoning_details of three chunks -> what they add up to
    "numbered": (
        [[DETAIL | {"index": 0}], [DETAIL | {"index": 0, "text": "me see."}], [SIGNED | {"index": 0}]],
        [DETAIL | SIGNED | {"index": 0, "text": "Let me see."}],
    ),
    "of several numbers": (
        [[DETAIL | {"index": 0}], [DETAIL | {"index": 1}], [DETAIL | {"index": 1, "text": "me."}]],
        [DETAIL | {"index": 0}, DETAIL | {"index": 1, "text": "Let me."}],
    ),
    "without numbers": ([[DETAIL], [], [DETAIL | {"text": "me see."}]], [DETAIL, DETAIL | {"text": "me see."}]),
    "opaque": ([[{"type": "reasoning.encrypted", "data": "b3BhcXVl"}], None, []],
               [{"type": "reasoning.encrypted", "data": "b3BhcXVl"}]),
}  # fmt: skip


@pytest.mark.parametrize(("pieces", "whole"), DETAILS.values(), ids=DETAILS)
def test_reasoning_details_are_merged_to_be_sent_back(pieces, whole):
    with Server(stream(*(chunk({"reasoning_details": piece}) for piece in pieces), OK, STOP)) as server:
        _, reply = chat(server)
    assert reply.message == {"role": "assistant", "content": "ok", "reasoning_details": whole}


def test_what_a_call_has_besides_is_sent_back_with_it():
    signed = {"extra_content": {"google": {"thought_signature": "c2ln"}}, "other": 1}
    with Server(stream(part(head(**signed)), part(rest()), CALLED)) as server:
        _, reply = chat(server)
    (call,) = reply.message["tool_calls"]
    assert {key: call[key] for key in signed} == signed and call["function"] == {"name": "f", "arguments": '{"x": 1}'}


# ------------------------------------------------------------------------------------------------------ cut replies


def cut(text, tokens=3):
    """A text that ends at the output limit."""
    return say(text, finish="length", usage={"prompt_tokens": 5, "completion_tokens": tokens})


def test_a_cut_text_is_gone_on_with_and_joined_without_a_seam():
    with Server(cut("One two th"), cut("ree fo"), say("ur.", usage=TOLD["usage"]), prefix=False) as server:
        events, reply = chat(server)
    assert reply.message == {"role": "assistant", "content": "One two three four."}
    assert shown(events) == "One two three four." and retries(events) == []
    assert [reply.usage[name] for name in ("prompt_tokens", "completion_tokens", "pieces")] == [15, 8, 3]
    _, *asked = [request.body["messages"][2:] for request in server.requests]
    assert [said["content"] for said, _ in asked] == ["One two th", "One two three fo"]
    assert all(order["role"] == "user" and "cut off" in order["content"] for _, order in asked)


def test_a_text_is_gone_on_with_three_times():
    with Server(*[cut(text) for text in "abcdef"], prefix=False) as server:
        _, reply = chat(server)
    assert reply.message["content"] == "abcd" and len(server.requests) == 4


def test_a_cut_text_ends_in_a_call():
    with Server(cut("I lo"), calls(("f", {"x": 1}), text="ok."), prefix=False) as server:
        _, reply = chat(server)
    assert (reply.message["content"], called(reply)) == ("I look.", [ONE])


def test_half_a_surrogate_pair_at_the_cut():
    halves = stream(chunk({"content": "a\ud83d"}), chunk({}, "length")), stream(chunk({"content": "\ude00b"}), STOP)
    with Server(*halves) as server:
        _, reply = chat(server)
    assert reply.message["content"] in ("a😀b", "a\ufffd\ufffdb", "a\ufffdb")


def test_a_continuation_that_breaks_is_asked_for_again_alone():
    with Server(cut("One "), raw(event(chunk({"content": "tw"})), RESET), say("two."), prefix=False) as server:
        events, reply = chat(server)
    assert reply.message["content"] == "One two." and len(retries(events)) == 1
    assert server.requests[1].body == server.requests[2].body


def test_nothing_to_go_on_with_is_the_end():
    with Server(cut("All is said."), *[say("")] * 9, prefix=False) as server:
        _, reply = chat(server)
    assert reply.message["content"] == "All is said." and len(server.requests) <= 4


@pytest.mark.parametrize("usage", [{"prompt_tokens": 5, "completion_tokens": 0}, False])
def test_no_room_for_a_reply_is_a_full_context(usage):
    with Server(say("", finish="length", usage=usage)) as server:
        assert trouble(server).status == "compact"


def test_a_content_filter_ends_the_turn_with_the_text():
    with Server(say("How to", finish="content_filter"), say("ok")) as server:
        found = trouble(server)
    assert found.status == "refused" and "How to" in str(found) and len(server.requests) == 1


def test_a_refusal_is_shown_and_an_answer():
    with Server(stream(chunk({"refusal": "I can"}), chunk({"refusal": "not."}), STOP), say("ok")) as server:
        events, reply = chat(server)
    assert reply.message == {"role": "assistant", "content": "I cannot."} and shown(events) == "I cannot."
    assert len(server.requests) == 1


# ------------------------------------------------------------------------------------------- what is asked for again

HALF = chunk({"content": "half of it"})
BROKEN = {
    "reset": raw(event(HALF), RESET),
    "cut": raw(event(HALF), CUT),
    "cut in a call": raw(event(part(head())), CUT),
    "closed in a call": raw(event(part(head())), framing="close"),
    "closed in a call that is told to be done": stream(part(head())),
    "closed in a text": raw(event(HALF), framing="close"),
    "closed in an event": raw(event(HALF), event(OK)[:30], framing="close"),
    "bad JSON": stream(HALF, "data: {\n\n"),
    "nothing in it": stream(chunk({"role": "assistant", "content": ""}), STOP),
    "blanks": stream(chunk({"content": " \n"}), STOP),
    "no event at all": raw(),
    "an empty body": raw(content_type="application/json", framing="length"),
    "an error event": stream(HALF, {"error": {"code": 502, "message": "overloaded"}}),
    "an error event with a text": stream(HALF, {"error": "boom"}),
    "an error event with choices": stream(HALF, {**EMPTY, "error": {"code": 502, "message": "overloaded"}}),
    "an error event without error": stream(HALF, 'event: error\ndata: {"message": "overloaded"}\n\n'),
    "an error as object": stream(HALF, {"object": "error", "message": "overloaded", "code": 503}),
    "an error in one piece": raw(
        '{"error": {"code": 502, "message": "overloaded"}}', content_type="application/json", framing="length"
    ),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_broken_replies_are_asked_for_again_and_forgotten(broken):
    with Server(broken, say("whole")) as server:
        events, reply = chat(server)
    assert reply.message == {"role": "assistant", "content": "whole"}
    assert len(retries(events)) == 1 and shown(events[events.index(retries(events)[0]) :]) == "whole"
    assert server.requests[0].body == server.requests[1].body


def test_a_whole_call_of_a_broken_reply_is_forgotten():
    with Server(raw(event(part(SECOND)), RESET), stream(part(head()), part(rest()), CALLED)) as server:
        _, reply = chat(server)
    assert called(reply) == [ONE]


@pytest.mark.parametrize("arguments", ["", None], ids=["empty", "null"])
def test_a_call_without_arguments_is_whole_only_where_the_end_is_marked(arguments):
    named = part(head(name="list_files", arguments=arguments))
    broken = raw(event(named), framing="close")
    with Server(broken, broken, say("whole")) as server:
        _, reply = chat(server)
    assert called(reply) == [] and len(server.requests) == 3
    with Server(stream(named, CALLED)) as server:
        _, reply = chat(server)
    assert (called(reply), reply.faults) == ([("list_files", {})], {})


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 520, 529])
def test_what_may_pass_is_waited_for(status):
    with Server(error(status, {"error": {"message": "come back"}}, {"Retry-After": "0.01"}), say("ok")) as server:
        events, reply = chat(server)
    (retry,) = events[:1]
    assert (type(retry), retry.seconds) == (Retrying, 0.01) and "come back" in retry.reason
    assert reply.message["content"] == "ok" and len(server.requests) == 2


LOOKALIKES = {  # these sound like a context that is too long, or like a limit that never ends
    "Groq": "Rate limit reached on tokens per minute (TPM): Limit 6000, Used 5034, Requested 1443. Try again in 4.77s.",
    "Bedrock": "ThrottlingException: Too many tokens, please wait before trying again.",
    "Anthropic": "This request would exceed your organization's rate limit of 30,000 input tokens per minute. Please "
    "reduce the prompt length or the maximum tokens requested, or try again later.",
    "Gemini": "You exceeded your current quota, please check your plan and billing details. Quota exceeded for metric: "
    "generate_content_free_tier_requests, limit: 10. Please retry in 26.66s.",
    "tokens": "Too many tokens, please wait",
    "nothing": "",
    "many requests": "Too many requests: the maximum is 20 in 60 s, reduce your rate",
}


@pytest.mark.parametrize("wording", LOOKALIKES.values(), ids=LOOKALIKES)
def test_rate_limits_are_not_taken_for_a_full_context(wording):
    body = {"error": {"message": wording, "code": "rate_limit_exceeded"}} if wording else ""
    with Server(error(429, body), stream(body)) as server:
        for _ in range(2 if wording else 1):
            assert isinstance(first_event(server), Retrying)


def test_overload_without_end():
    with Server(*[error(503, {"error": {"message": "overloaded"}})] * 20) as server:
        found = trouble(server)
    assert found.status == "unavailable" and "overloaded" in str(found)
    assert 3 <= len(server.requests) <= 10


def test_empty_replies_without_end():
    with Server(*[stream(STOP)] * 20) as server:
        found = trouble(server)
    assert found.status == "unavailable" and "empty" in str(found)
    assert len(server.requests) <= 10


def test_waits_grow():
    asked = []
    with Server(*[error(503)] * 20) as server, pytest.raises(Trouble):
        for happened in Model(Config(base_url=server.url, model="scripted")).chat(REQUEST, lambda: None):
            asked.append(happened.seconds)
    assert asked == sorted(asked) and len(set(asked)) == len(asked)


def test_nobody_there():
    with Server() as server:
        pass
    found = trouble(server)
    assert found.status == "unavailable" and "refused" in str(found)


# ----------------------------------------------------------------------------------------------- what is given up

QUOTA = {
    "error": {"message": "You exceeded your current quota", "type": "insufficient_quota", "code": "insufficient_quota"}
}
CREDITS = {"error": {"message": "This request requires more credits, or fewer max_tokens", "code": 402}}
HOPELESS = {
    "wrong key": error(401, {"error": {"message": "no such key", "code": "invalid_api_key"}}),
    "no credits": error(402, CREDITS),
    "forbidden": error(403, {"error": {"message": "not in your country"}}),
    "no such model": error(404, {"error": {"message": "model `m` not found"}}),
    "bad request": error(400, {"error": {"message": "messages[3]: bad"}}),
    "bad request, FastAPI": error(422, {"detail": [{"loc": ["body"], "msg": "extra fields not permitted"}]}),
    "bad request, a string": error(400, {"error": "model does not support tools"}),
    "bad request, a list": error(400, [{"error": {"message": "Invalid JSON payload", "status": "INVALID_ARGUMENT"}}]),
    "bad request, a bare list": error(400, [{"message": "Invalid JSON payload", "status": "INVALID_ARGUMENT"}]),
    "quota": error(429, QUOTA),
    "quota of the day": error(429, {"error": {"message": "Rate limit exceeded: free-models-per-day"}}),
    "wrong key in the stream": stream({"error": {"code": 401, "message": "no such key"}}),
}


@pytest.mark.parametrize("hopeless", HOPELESS.values(), ids=HOPELESS)
def test_what_will_never_be_accepted_is_asked_once(hopeless):
    with Server(hopeless, say("ok")) as server:
        found = trouble(server)
    assert found.status == "refused" and len(server.requests) == 1
    assert re.search("no such key|credits|country|not found|bad|extra|tools|Invalid JSON|quota|per-day", str(found))


def test_a_page_is_refused_with_a_hint():
    with Server(raw("<!DOCTYPE html><html>Welcome</html>", content_type="text/html"), say("ok")) as server:
        found = trouble(server)
    assert found.status == "refused" and "/v1" in str(found) and len(server.requests) == 1


ECHOING = {"error": {"message": f"Incorrect API key provided: {KEY}. See your account."}}


@pytest.mark.parametrize(
    "refusal", [error(401, ECHOING), error(401, f"bad key {KEY}"), stream(ECHOING | {"code": 401})]
)
def test_the_key_is_masked(refusal):
    with Server(*[refusal] * 10) as server:
        found = trouble(server, api_key=KEY)
    assert KEY not in str(found) and "[key]" in str(found)


@pytest.mark.parametrize("cut", [8, 12, len(KEY) - 1])
def test_a_key_across_a_cut_is_masked(cut):
    told = "m" * (2_000 - cut) + KEY + " is wrong"
    with Server(error(401, {"error": {"message": told}}), error(401, told)) as server:
        found = str(trouble(server, api_key=KEY)) + str(trouble(server, api_key=KEY))
    assert [KEY[at : at + 8] for at in range(len(KEY) - 7) if KEY[at : at + 8] in found] == []


def test_the_key_is_masked_while_it_waits():
    with Server(error(503, ECHOING), say("ok")) as server:
        events, _ = chat(server, api_key=KEY)
    assert KEY not in events[0].reason and KEY not in repr(Config(api_key=KEY))


def test_a_key_that_is_no_secret_spoils_no_text():
    """Local servers take any key, and people give them "x"."""
    with Server(error(400, {"error": {"message": "maximum context exceeds text"}})) as server:
        assert "maximum context exceeds text" in str(trouble(server, api_key="x"))


def test_a_page_instead_of_an_error_is_not_shown_whole():
    with Server(error(502, "<html>" + "a long page " * 10_000), say("ok")) as server:
        events, _ = chat(server)
    assert "a long page" in events[0].reason and len(events[0].reason) < 5_000


def test_a_key_that_no_header_can_hold_is_refused():
    with Server(say("ok")) as server:
        assert trouble(server, api_key="schlüssel").status == "refused"
    assert server.requests == []


CODES = ["context_length_exceeded", "string_above_max_length", "exceed_context_size_error"]


@pytest.mark.parametrize("name", ["code", "type"])
@pytest.mark.parametrize("code", [*CODES, "model_max_prompt_tokens_exceeded"])
def test_a_full_context_is_known_by_its_code(name, code):
    with Server(error(400, {"error": {"message": "Sorry.", name: code}})) as server:
        assert trouble(server).status == "compact"


OTHER_BODIES = {
    "a string": error(400, {"error": "prompt too long; exceeded max context length by 540451 tokens"}),
    "flat": error(400, {"object": "error", "message": "This model's maximum context length is 4096 tokens."}),
    "a list": error(400, [{"error": {"code": 400, "message": "The input is too long for the context window"}}]),
    "a page": error(400, "<html><title>413 Request Entity Too Large</title></html>"),
    "nothing": error(413),
    "in one piece": raw('{"error": {"code": 400, "message": "This endpoint\'s maximum context length is 131072"}}',
                        content_type="application/json", framing="length"),
}  # fmt: skip


@pytest.mark.parametrize("overflow", OTHER_BODIES.values(), ids=OTHER_BODIES)
def test_a_full_context_is_known_in_other_bodies(overflow):
    with Server(overflow) as server:
        assert trouble(server).status == "compact"
    assert len(server.requests) == 1


def test_a_window_of_five_thousand_digits_is_not_believed():
    with Server(error(400, {"error": {"message": f"This model's maximum context length is {'1' * 5_000}"}})) as server:
        assert trouble(server).status in ("compact", "refused")


# --------------------------------------------------------------------------------------------------------- silence


def late():
    time.sleep(1)
    return say("late")


SILENT = {
    "before the headers": lambda request: late(),
    "before the first event": raw(HANG),
    "within a text": raw(event(HALF), HANG),
    "with signs of life": raw(event(HALF), *[": ping\n\n", ": ping\n\n"], HANG),
    "while it waits to ask again": error(503, "", {"Retry-After": "60"}),
}


@pytest.mark.parametrize("silent", SILENT.values(), ids=SILENT)
def test_a_turn_can_end_in_any_silence(silent):
    ended = threading.Event()

    def check():
        if ended.is_set():
            raise Trouble("interrupted", "by the test")

    with Server(silent, say("too late")) as server:
        threading.Timer(0.3, ended.set).start()
        began = time.monotonic()
        with pytest.raises(Trouble, match="by the test"):
            chat(server, check=check)
        assert time.monotonic() - began < 0.8
    assert len(server.requests) == 1
