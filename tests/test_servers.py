"""What servers refuse, how long they take and what they tell: each kind of them, and what the agent makes of it."""

import json
import re
import time
from email.utils import formatdate

import openai  # noqa: F401 (so that no stall is measured while it is imported)
import pytest
from conftest import of, result, turn
from scripted import HANG, JSON, RESET, Pause, Server, calls, chunk, error, event, happened, raw, response, say, stream

from tinyagent import Config, Model, Noticed, Retrying, TextArrived, Trouble, trouble

KEY = "sk-secret-0123456789"
REQUEST = {"messages": [{"role": "system", "content": "You test."}, {"role": "user", "content": "hi"}]}
ECHO = ("run_shell_command", {"command": "echo from-the-shell"})
STOP, HALF = chunk({}, "stop"), chunk({"content": "half of it"})


@pytest.fixture(autouse=True)
def chance(monkeypatch):
    """Chance has it that the waits are short."""
    monkeypatch.setattr("random.uniform", lambda low, high: 0.005)


def chat(server, request=REQUEST, model=None, **more):
    """The events of an exchange, and how it ends: with the reply, or in Trouble."""
    model, events = model or Model(Config(base_url=server.url, model="scripted", **more)), []
    asking = model.chat(request, lambda: None)
    while True:
        try:
            events.append(next(asking))
        except StopIteration as end:
            return events, end.value
        except Trouble as end:
            return events, end


def shown(events):
    return "".join(e.text for e in of(TextArrived, events))


def facts(agent, kind):
    """The facts of a kind in the journal."""
    lines = [json.loads(line) for line in agent.session.path.read_bytes().split(b"\n") if line]
    return [line for line in lines if line["type"] == kind]


# ------------------------------------------------------------------------------------------------ what it refuses


def refusing(*names, wording="Unsupported parameter: '{}' is not supported with this model."):
    """A server that takes no request in which one of these names stands; the first of them is named."""

    def reply(request):
        written = json.dumps({k: v for k, v in request.body.items() if k != "tools"})
        found = next((name for name in names if f'"{name}":' in written), None)
        return error(400, {"error": {"message": wording.format(found)}}) if found else say("ok")

    return reply


WORDINGS = [
    "Unsupported parameter: '{}' is not supported with this model.",
    "property '{}' is unsupported",
    "Unrecognized request argument supplied: {}",
    "body.{}: Extra inputs are not permitted",
    'Invalid JSON payload received. Unknown name "{}": Cannot find field.',
]


@pytest.mark.parametrize("wording", WORDINGS)
@pytest.mark.parametrize("name", ["stream_options", "reasoning_effort"])
def test_a_refused_field_is_left_out_for_good(agent, name, wording):
    with Server(*[refusing(name, wording=wording)] * 4, prefix=False) as server:
        told = agent(server, reasoning_effort="low")
        events = turn(told)
        assert events[-1].status == "done" and of(Retrying, events) == []
        turn(told, "again")
        assert result(agent(server, reasoning_effort="low"), "resumed").status == "done"
    assert [name in request.body for request in server.requests] == [True, False, False, False]
    assert [(fact["what"], fact["value"]) for fact in facts(told, "learned")] == [("refused", name)]


def test_fields_are_refused_one_after_the_other(agent):
    names = "stream_options", "reasoning_effort", "max_completion_tokens", "max_tokens"
    with Server(*[refusing(*names)] * 9) as server:
        assert result(agent(server, reasoning_effort="low", max_output=9)).status == "done"
    assert len(server.requests) == 5 and set(names).isdisjoint(server.requests[-1].body)


def test_the_limit_of_a_reply_goes_under_the_name_that_the_server_takes():
    wording = "Unsupported parameter: 'max_completion_tokens'. Use 'max_tokens' instead."
    with Server(refusing("max_completion_tokens", wording=wording), say("ok")) as server:
        chat(server, max_output=9)
    assert [request.body.get("max_tokens") for request in server.requests] == [None, 9]
    with Server(say("ok")) as server:
        chat(server)
    assert {"max_tokens", "max_completion_tokens"}.isdisjoint(server.requests[0].body)


def test_a_limit_that_is_too_large_for_the_window_is_no_refused_field(agent):
    told = "'max_tokens' or 'max_completion_tokens' is too large: 4000. This model's maximum context length is 8192 "
    told += "tokens and your request has 5000 input tokens (4000 > 8192 - 5000)."
    with Server(*[error(400, {"object": "error", "message": told})] * 5) as server:
        told = agent(server, max_output=4_000)
        end = result(told)
    assert end.status == "refused" and "window is too small" in end.text
    assert [fact["value"] for fact in facts(told, "learned")] == [8192]


def test_reasoning_that_is_not_taken_back_is_left_out_of_every_message(agent):
    detail = [{"type": "extra_forbidden", "loc": ["body", "messages", 2, "assistant", "reasoning_content"]}]

    def strict(request):
        found = any("reasoning_content" in message for message in request.body["messages"])
        return error(422, {"detail": detail}) if found else thinking(f"{len(server.requests)}.")

    def thinking(text):
        return stream(chunk({"reasoning_content": "Hm."}), chunk({"content": text}), STOP)

    with Server(*[strict] * 9, prefix=False) as server:
        told = agent(server)
        assert [result(told, text).status for text in ("first", "second", "third")] == ["done"] * 3
    assert len(server.requests) == 4


def test_unknown_keys_of_calls_that_are_not_taken_back_are_left_out(agent):
    call = {"index": 0, "id": "a", "type": "function", "function": {"name": "list_files", "arguments": "{}"}}
    signed = stream(chunk({"tool_calls": [{**call, "extra_content": {"signature": "c2ln"}}]}), chunk({}, "tool_calls"))
    with Server(signed, *[refusing("extra_content")] * 3, prefix=False) as server:
        assert result(agent(server)).status == "done"
    assert ["extra_content" in json.dumps(r.body["messages"]) for r in server.requests] == [False, True, False]


@pytest.mark.parametrize("name", ["stream_options", "messages", "tools", "temperature", "model", "content", "role"])
def test_a_field_is_left_out_at_most_once(agent, name):
    """A server that goes on naming it, or names what must be there or was not, is not asked for ever."""
    refusal = error(400, {"error": {"message": f"Unsupported parameter: '{name}'"}})
    with Server(*[refusal] * 20) as server:
        assert result(agent(server)).status == "refused"
    assert len(server.requests) <= 2


NO_FIELD = {  # what is refused for another reason, though the name of a field is in the text
    "credits": error(402, {"error": {"message": "This request requires more credits, or fewer max_completion_tokens"}}),
    "key": error(401, {"error": {"message": "this key may not use reasoning_effort"}}),
    "model": error(404, {"error": {"message": "no endpoint supports stream_options"}}),
}


@pytest.mark.parametrize("refusal", NO_FIELD.values(), ids=NO_FIELD)
def test_only_a_bad_request_is_about_its_fields(refusal):
    with Server(*[refusal] * 5) as server:
        _, end = chat(server, max_output=9, reasoning_effort="low")
    assert end.status == "refused" and len(server.requests) == 1


def test_a_key_with_odd_letters_in_a_reply_is_no_pattern(agent):
    odd = stream(chunk({"a(b": "c", "content": "One."}), STOP)
    with Server(odd, error(400, {"error": {"message": "no"}}), prefix=False) as server:
        told = agent(server)
        assert [result(told, text).status for text in ("first", "second")] == ["done", "refused"]


# -------------------------------------------------------------------------------------------------------- silence

PINGS = [part for _ in range(12) for part in (": ping\n\n", Pause(0.1))]
OPENED = event(chunk({"role": "assistant", "content": ""}))
SILENT = {  # a reply -> seconds after which it is given up
    "from the start": (raw(HANG), 0.5),
    "within a text": (raw(event(HALF), HANG), 0.3),
    "with signs of life": (raw(*PINGS), 0.5),
    "with signs of life within a text": (raw(event(HALF), *PINGS), 0.3),
    "with empty events": (raw(*["data:\n\n" if part == ": ping\n\n" else part for part in PINGS]), 0.5),
    "with the names of events": (raw(*["event: ping\n\n" if part == ": ping\n\n" else part for part in PINGS]), 0.5),
}


@pytest.mark.parametrize(("silent", "limit"), SILENT.values(), ids=SILENT)
def test_a_reply_that_stalls_is_given_up_and_asked_for_again(silent, limit):
    with Server(silent, say("whole")) as server:
        began = time.monotonic()
        events, reply = chat(server, stall_seconds="0.5,0.3")
        assert limit - 0.05 < time.monotonic() - began
    (again,) = of(Retrying, events)
    reason = f"nothing arrived for {limit} s" + "|timed out" * (limit == 0.5)  # the SDK's own limit is the longer one
    assert reply.message["content"] == "whole" and re.search(reason, again.reason)


SLOW = {
    "slow to begin": raw(Pause(1.5), event(HALF), event(STOP), "data: [DONE]\n\n"),
    "slow between texts": raw(*[part for _ in range(8) for part in (event(HALF), Pause(0.7))], event(STOP)),
    "thinking after the role": raw(OPENED, Pause(1.5), event(HALF), event(STOP)),
}


@pytest.mark.parametrize("slow", SLOW.values(), ids=SLOW)
def test_a_slow_reply_is_waited_for(slow):
    with Server(slow, say("asked again")) as server:
        events, reply = chat(server, stall_seconds="5,1.3")
    assert of(Retrying, events) == [] and "half of it" in reply.message["content"]


def test_thinking_after_the_start_of_a_response_is_waited_for():
    begin, *rest = response("Done.").parts
    with Server(lambda request: raw(begin, Pause(1.5), *rest[:-1], happened(rest[-1].last))) as server:
        events, reply = chat(server, stall_seconds="5,1.3", api="responses")
    assert of(Retrying, events) == [] and reply.message["content"] == "Done."


def test_stalls_without_end_are_told():
    with Server(*[raw(HANG)] * 9) as server:
        _, end = chat(server, stall_seconds="0.1,0.1")
    assert end.status == "unavailable" and re.search("nothing arrived|timed out", str(end)) and len(server.requests) < 9


ENDLESS = raw("data: ", *[part for _ in range(3000) for part in (" ", Pause(0.005))])  # a line, for 15 s and more
ENDS = {
    "at the time limit": (["--max_seconds", 3], "limit"),
    "at a stall": (["--stall_seconds", "1,1"], "done"),
    "at a signal": ([], "interrupted"),
}


@pytest.mark.parametrize(("options", "status"), ENDS.values(), ids=ENDS)
def test_the_end_of_a_line_is_not_waited_for(start, workspace, options, status):
    with Server(ENDLESS, say("whole")) as server:
        process = start("task", "--start_dir", workspace, "--json", *options, server=server)
        if status == "interrupted":
            server.wait()
            time.sleep(0.5)
            process.terminate()
        output, _ = process.communicate(timeout=12)
    assert json.loads(output.splitlines()[-1])["status"] == status


def test_a_very_long_line_is_read_in_reasonable_time(run, workspace):
    line = event(chunk({"content": "x" * 20_000_000}))
    pieces = [line[start : start + 65_536] for start in range(0, len(line), 65_536)]
    with Server(raw(*pieces, event(STOP))) as server:
        done = run("task", "--start_dir", workspace, server=server, timeout=10)
    assert done.returncode in (0, 5, 75) and "Traceback" not in done.stderr


def test_a_reply_is_left_when_nobody_wants_it():
    """Whatever is in it, the server notices it at once."""
    with Server(raw(event(chunk({"content": "The end of a stream is [DONE]."})), HANG)) as server:
        asking = Model(Config(base_url=server.url, model="scripted")).chat(REQUEST, lambda: None)
        next(asking)
        asking.close()
        deadline = time.monotonic() + 2
        while server.connections and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not server.connections


# ------------------------------------------------------------------------------------------------- when to come back

BACKOFF = (0.001, 2)
WAITS = {  # headers -> from how many to how many seconds are waited
    "seconds": ({"Retry-After": "2"}, (2, 2)),
    "a fraction": ({"Retry-After": "0.5"}, (0.5, 0.5)),
    "nothing": ({"Retry-After": "0"}, (0, 2)),
    "negative": ({"Retry-After": "-5"}, (0, 2)),
    "no number": ({"Retry-After": "nan"}, (0, 2)),
    "empty": ({"Retry-After": ""}, BACKOFF),
    "words": ({"Retry-After": "soon"}, BACKOFF),
    "half a number": ({"Retry-After": "1e"}, BACKOFF),
    "a date in the past": ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, (0, 2)),
    "a date of no zone": ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 -0000"}, (0, 2)),
    "a date of no year": ({"Retry-After": "Mon, 01 Jan 99999 00:00:00 GMT"}, (0, 120)),
    "twice": ({"Retry-After": ["1", "1"]}, (0, 2)),
    "milliseconds": ({"retry-after-ms": "1500"}, (1.5, 1.5)),
    "milliseconds of Azure": ({"x-ms-retry-after-ms": "700"}, (0.7, 0.7)),
    "milliseconds before seconds": ({"Retry-After": "9", "retry-after-ms": "1500"}, (1.5, 1.5)),
    "no milliseconds": ({"Retry-After": "1", "retry-after-ms": "soon"}, (1, 1)),
}


@pytest.mark.parametrize(("headers", "bounds"), WAITS.values(), ids=WAITS)
def test_the_wait_that_the_headers_ask_for(headers, bounds):
    with Server(error(503, "", headers)) as server:
        waiting = next(Model(Config(base_url=server.url, model="scripted")).chat(REQUEST, lambda: None))
    assert bounds[0] <= waiting.seconds <= bounds[1]


def test_the_wait_until_a_date():
    with Server(error(503, "", {"Retry-After": formatdate(time.time() + 60, usegmt=True)})) as server:
        waiting = next(Model(Config(base_url=server.url, model="scripted")).chat(REQUEST, lambda: None))
    assert 50 < waiting.seconds <= 60


RETRY_INFO = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "45.837906927s"}
TEXTS = {  # the body of an error -> the seconds that are waited
    "Groq": ({"error": {"message": "Rate limit reached. Please try again in 4.77s. Need more?"}}, 4.77),
    "Groq, minutes": ({"error": {"message": "Rate limit reached. Please try again in 1m2.5s."}}, 62.5),
    "Gemini": ([{"error": {"code": 429, "message": "Resource exhausted", "details": [RETRY_INFO]}}], 45.837906927),
    "Gemini, text": ({"error": {"message": "Quota exceeded. Please retry in 26.66s."}}, 26.66),
    "Azure": ({"error": {"message": "Please retry after 33 seconds."}}, 33),
}


@pytest.mark.parametrize(("body", "seconds"), TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("form", ["before the stream", "in the stream"])
def test_the_wait_that_the_text_asks_for(body, seconds, form):
    inside = body[0] if isinstance(body, list) else body
    with Server(error(429, body) if form == "before the stream" else stream(inside)) as server:
        waiting = next(Model(Config(base_url=server.url, model="scripted")).chat(REQUEST, lambda: None))
    assert waiting.seconds == seconds


@pytest.mark.parametrize("value", ["121", "3600", "9999999999", "inf", "a date"])
def test_a_wait_of_more_than_two_minutes_is_told_and_not_waited_for(agent, value):
    value = formatdate(time.time() + 9999, usegmt=True) if value == "a date" else value
    with Server(error(429, {"error": {"message": "later"}}, {"Retry-After": value})) as server:
        end = result(agent(server))
    assert (end.status, end.exit_code) == ("unavailable", 75) and len(server.requests) == 1
    assert "later" in end.text and re.search(r"in (\d+|inf) seconds", end.text)


def test_a_wait_of_two_minutes_is_waited_for():
    with Server(error(429, "", {"Retry-After": "120"})) as server:
        asking = Model(Config(base_url=server.url, model="scripted")).chat(REQUEST, lambda: None)
        assert next(asking).seconds == 120


# --------------------------------------------------------------------------------------------- broken and empty

BUSY = {"error": {"code": 502, "message": "overloaded"}}


def test_the_text_of_a_broken_reply_is_withdrawn(agent):
    with Server(stream(HALF, BUSY), stream(HALF, BUSY), say("whole"), say("Next.")) as server:
        told = agent(server)
        events = turn(told)
        turn(told, "next")
    kinds = [type(e).__name__ for e in events if isinstance(e, (TextArrived, Retrying))]
    assert kinds[:4] == ["TextArrived", "Retrying"] * 2 and set(kinds[4:]) == {"TextArrived"}
    assert [m["content"] for m in told.session.messages] == ["go", "whole", "next", "Next."]
    assert "half of it" not in told.session.path.read_text()
    assert "half of it" not in json.dumps([request.body for request in server.requests])


def test_a_text_before_a_full_context_is_withdrawn(agent):
    """What is shown of a reply after that is the whole of it."""
    overflow = stream(HALF, {"error": {"code": "context_length_exceeded", "message": "too long"}})
    with Server(say("One."), overflow, say("They talked."), say("Two."), prefix=False) as server:
        told = agent(server)
        turn(told, "first")
        events = turn(told, "second")
    withdrawn = max((i for i, e in enumerate(events) if isinstance(e, Retrying)), default=-1)
    assert shown(events[withdrawn + 1 :]) == "Two." == events[-1].text


def test_a_text_before_a_lesson_is_withdrawn():
    refusal = {"error": {"code": 400, "message": "Unsupported parameter: 'stream_options'"}}
    with Server(stream(HALF, refusal), say("whole")) as server:
        events, reply = chat(server)
    withdrawn = max((i for i, e in enumerate(events) if isinstance(e, Retrying)), default=-1)
    assert shown(events[withdrawn + 1 :]) == "whole" == reply.message["content"]


def test_no_call_of_a_broken_reply_runs(agent, workspace):
    call = {"index": 0, "id": "a", "function": {"name": "run_shell_command", "arguments": '{"command": "touch X"}'}}
    with Server(stream(chunk({"tool_calls": [call]}), BUSY), say("whole")) as server:
        assert result(agent(server)).text == "whole"
    assert list(workspace.iterdir()) == []


EMPTY = {
    "nothing": stream(STOP),
    "blanks": stream(chunk({"content": " \n"}), STOP),
    "reasoning alone": stream(chunk({"reasoning_content": "Hm."}), STOP),
}


@pytest.mark.parametrize("empty", EMPTY.values(), ids=EMPTY)
def test_an_empty_reply_is_asked_for_twice_more(agent, empty):
    with Server(*[empty] * 3, say("ok")) as server:
        told = agent(server)
        end = result(told)
        assert end.status == "unavailable" and "empty" in end.text and len(server.requests) == 3
        assert result(told, "again").status == "done"
    assert [m["role"] for m in told.session.messages] == ["user", "user", "assistant"]


def test_an_empty_reply_and_then_a_whole_one(agent):
    with Server(stream(STOP), stream(STOP), say("ok")) as server:
        assert result(agent(server)).text == "ok"


def test_the_server_is_unplugged_in_the_middle(agent):
    def unplugged(request):
        server.http.shutdown()
        server.http.server_close()
        return raw(event(HALF), RESET)

    with Server(calls(ECHO), unplugged, *[raw(RESET)] * 9) as server:  # a connection that is open may still be served
        events = turn(agent(server))
    assert events[-1].status == "unavailable" and of(Retrying, events)
    with Server(say("Back.")) as server:
        assert result(agent(server), "again").text == "Back."


# ------------------------------------------------------------------------------------------------ calls as text

CALL = '{"name": "run_shell_command", "arguments": {"command": "touch X"}}'
WRITTEN = {
    "bare": CALL,
    "with blanks": f"\n {CALL}\n",
    "over lines": json.dumps(json.loads(CALL), indent=2),
    "fenced": f"```\n{CALL}\n```",
    "fenced as json": f"```json\n{CALL}\n```",
    "in tags": f"<tool_call>\n{CALL}\n</tool_call>",
    "line ends within": CALL.replace("touch X", "touch X\ntrue"),
}
NO_CALLS = {
    "text before": f"I run this: {CALL}",
    "text after": f"{CALL}\nThat was it.",
    "text around a fence": f"Here:\n```json\n{CALL}\n```",
    "two calls": f"{CALL}\n{CALL}",
    "unknown name": CALL.replace("run_shell_command", "run"),
    "no arguments": '{"name": "run_shell_command"}',
    "arguments no object": '{"name": "run_shell_command", "arguments": "touch X"}',
    "more than a call": CALL[:-1] + ', "why": "so"}',
    "a list": f"[{CALL}]",
    "broken": CALL[:-1],
    "name no text": '{"name": ["run_shell_command"], "arguments": {}}',
    "too deep": CALL.replace('"touch X"', "[" * 100_000 + "]" * 100_000),
}


@pytest.mark.parametrize("text", WRITTEN.values(), ids=WRITTEN)
def test_a_call_as_text_is_run_when_it_is_asked_for(agent, workspace, text):
    with Server(say(text), say("Done.")) as server:
        assert result(agent(server, text_calls=True)).text == "Done."
    assert [path.name for path in workspace.iterdir()] == ["X"]
    assert server.requests[1].body["messages"][-1]["role"] == "tool"


@pytest.mark.parametrize("text", NO_CALLS.values(), ids=NO_CALLS)
def test_other_texts_are_no_calls(agent, workspace, text):
    with Server(say(text)) as server:
        assert result(agent(server, text_calls=True)).text == text
    assert list(workspace.iterdir()) == []


@pytest.mark.parametrize("text", WRITTEN.values(), ids=WRITTEN)
def test_a_call_as_text_is_not_run_otherwise(agent, workspace, text):
    with Server(say(text)) as server:
        assert result(agent(server)).text == text
    assert list(workspace.iterdir()) == []


def test_a_call_in_text_and_as_a_call_runs_once(agent, workspace):
    both = calls(("run_shell_command", {"command": "echo ran >> X"}), text=CALL.replace("touch X", "echo ran >> X"))
    with Server(both, say("Done.")) as server:
        result(agent(server, text_calls=True))
    assert (workspace / "X").read_text() == "ran\n"


# --------------------------------------------------------------------------------------------------------- costs

USED = {"prompt_tokens": 10_000, "completion_tokens": 1_000, "prompt_tokens_details": {"cached_tokens": 4_000}}


def test_the_cost_by_the_price(agent):
    with Server(calls(ECHO, usage=USED), say("Done.", usage=USED)) as server:
        told = agent(server, price="1,0.1,10")
        end = result(told)
    assert end.usage["cost"] == pytest.approx(2 * (6 * 1 + 4 * 0.1 + 1 * 10) / 1000)
    assert [fact["usage"]["cost"] for fact in facts(told, "model_replied")] == [pytest.approx(0.0164)] * 2


def test_the_cost_that_the_server_tells_counts_more(agent):
    with Server(say("Done.", usage=USED | {"cost": 0.25})) as server:
        assert result(agent(server, price="1,0.1,10")).usage["cost"] == 0.25


def test_reasoning_tokens_are_told(agent):
    with Server(say("Done.", usage=USED | {"completion_tokens_details": {"reasoning_tokens": 7}})) as server:
        assert result(agent(server)).usage["reasoning_tokens"] == 7


@pytest.mark.parametrize("told", [{"cost": 0.25}, {}], ids=["told", "by the price"])
def test_a_limit_in_dollars(agent, told):
    with Server(*[calls(ECHO, usage=USED | told)] * 9) as server:
        end = result(agent(server, price="1,0.1,10", max_cost=0.4 if told else 0.02))
    assert (end.status, end.exit_code, len(server.requests)) == ("limit", 4, 2)


# ---------------------------------------------------------------------------------------------------- the window

PAGES = {  # what a server tells where -> the window
    "llama.cpp, models": ({"/v1/models": {"data": [
        {"id": "scripted", "meta": {"n_ctx": 6144, "n_ctx_train": 9}}]}}, 6144),
    "llama.cpp, props": ({"/props": {"default_generation_settings": {"n_ctx": 6144}, "model_path": "m.gguf"}}, 6144),
    "vLLM": ({"/v1/models": {"data": [
        {"id": "a", "max_model_len": 9}, {"id": "scripted", "max_model_len": 7000}]}}, 7000),
    "OpenRouter": ({"/v1/models": {"data": [{"id": "a"}, {"id": "scripted", "context_length": 7000}]}}, 7000),
    "Ollama": ({"/api/ps": {"models": [{"name": "scripted", "model": "scripted", "context_length": 4096}]}}, 4096),
    "LM Studio": ({"/api/v0/models": {"data": [{"id": "a", "max_context_length": 9}, {
        "id": "scripted", "max_context_length": 131072, "loaded_context_length": 7000}]}}, 7000),
    "LM Studio, not loaded": ({"/api/v0/models": {"data": [
        {"id": "scripted", "max_context_length": 7000, "loaded_context_length": 0}]}}, 7000),
}  # fmt: skip


@pytest.mark.parametrize(("pages", "window"), PAGES.values(), ids=PAGES)
def test_the_window_that_the_server_tells(agent, pages, window):
    def later(request):
        wait_for(lambda: "/api/v0/models" in server.gets)
        time.sleep(0.1)
        return say("One.")

    with Server(calls(ECHO), later, say("Two."), pages=pages, models=None) as server:
        told = agent(server)
        turn(told)
        assert told.window == window
        assert [(fact["what"], fact["value"]) for fact in facts(told, "learned")] == [("context", window)]
        resumed = agent(server)
        assert resumed.window == window and resumed.workspace.limit < 24_000
        assert agent(server, context=3000).window == 3000 and agent(server, context=99_000).window == window


def wait_for(condition, seconds=5):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)


NO_WINDOWS = {
    "nothing there": {},
    "another model": {"/v1/models": {"data": [{"id": "a", "max_model_len": 9}, {"id": "b", "max_model_len": 9}]}},
    "no number": {"/v1/models": {"data": [{"id": "scripted", "max_model_len": "long", "context_length": None}]}},
    "nothing": {"/v1/models": {"data": [{"id": "scripted", "max_model_len": 0}]}, "/props": []},
    "nonsense": {"/v1/models": [None], "/props": "x", "/api/ps": {"models": [None, 5]}, "/api/v0/models": {"data": 5}},
}  # fmt: skip


@pytest.mark.parametrize("pages", NO_WINDOWS.values(), ids=NO_WINDOWS)
def test_a_server_that_tells_no_window(agent, pages):
    def later(request):
        wait_for(lambda: "/api/v0/models" in server.gets)
        time.sleep(0.1)
        return say("One.")

    with Server(calls(ECHO), later, pages=pages, models=None) as server:
        told = agent(server)
        assert result(told).status == "done" and told.window == 128_000 and facts(told, "learned") == []


def test_a_server_that_cut_in_silence_is_told_once(agent):
    long, few = "many words " * 4000, {"prompt_tokens": 2050, "completion_tokens": 5}
    with Server(*[calls(ECHO, usage=few)] * 3, say("Done.", usage=few)) as server:
        events = turn(agent(server), long)
    (warning,) = of(Noticed, events)
    assert "2,050" in warning.text and "context" in warning.text


def test_a_server_that_read_all_is_not_suspected(agent):
    with Server(say("Done.")) as server:
        assert of(Noticed, turn(agent(server), "many words " * 4000)) == []


# ------------------------------------------------------------------------------------------------ keys and proxies


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_a_server_on_this_machine_needs_no_proxy(monkeypatch, agent, name):
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    with Server(say("ok")) as server:
        assert result(agent(server)).text == "ok"


ECHOED = {"error": {"message": f"Incorrect API key provided: {KEY}."}}
KEYED = [
    error(503, ECHOED, {"Retry-After": "0"}),
    calls(("run_shell_command", {"command": 'env; echo "[$OPENAI_API_KEY]"'})),
    stream(HALF, ECHOED | {"code": 401}, done=False),
    error(401, ECHOED),
]


@pytest.mark.parametrize("how", [[], ["--json"]])
def test_the_key_is_nowhere(run, workspace, home, how):
    with Server(*KEYED, *[KEYED[-1]] * 6) as server:
        environment = {"OPENAI_API_KEY": f" {KEY}\n", "COPY_OF_IT": KEY}
        done = run("--start_dir", workspace, *how, "go", server=server, env=environment)
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    written = "".join(path.read_text(errors="replace") for path in home.rglob("*") if path.is_file())
    assert KEY not in done.stdout + done.stderr + written and done.returncode == 5
    assert "[key]" in done.stdout + done.stderr and "[key]" in written
    assert "[]" in written and "PATH=" in written and "COPY_OF_IT" not in written
    assert all(KEY not in json.dumps(request.body) for request in server.requests)


# ------------------------------------------------------------------------------------- a context that is too long

WINDOW = "maximum context length is"
OVERFLOWS = [  # 13 has no words; number, status (400 where it is not known), text, and what else is in the body
    (1, 400, f"This model's {WINDOW} 128000 tokens. However, your messages resulted in 391407 tokens. Please "
     "reduce the "
     "length of the messages.", {"code": "context_length_exceeded"}),
    (2, 400, f"This model's {WINDOW} 8192 tokens. However, you requested 8213 tokens (6683 in the messages, 730 in the "
     "functions, and 800 in the completion). Please reduce the length of the messages, functions, or completion.",
     {"code": "context_length_exceeded"}),
    (3, 400, "Your input exceeds the context window of this model. Please adjust your input and try again.",
     {"code": "context_length_exceeded"}),
    (5, 429, "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 342389. The input or output "
     "tokens must be reduced in order to run successfully.", {"type": "tokens", "code": "rate_limit_exceeded"}),
    (6, 400, "input tokens exceed the configured limit", {}),
    (7, 400, f"This model's {WINDOW} 262144 tokens. However, you requested 0 output tokens and your prompt contains at "
     "least 262145 input tokens, for a total of at least 262145 tokens.", {"type": "BadRequestError", "code": "400"}),
    (8, 400, f"This model's {WINDOW} 4096 tokens. However, you requested 17165 tokens (13069 in the messages, "
     "4096 in the "
     "completion)", {"object": "error", "code": 40303}),
    (9, 400, "The input (1492905 tokens) is longer than the model's context length (1048576 tokens).", {}),
    (10, 422, "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 9000 `inputs` tokens", {}),
    (11, 400, "the request exceeds the available context size. try increasing the context size or enable context shift",
     {"type": "exceed_context_size_error", "n_prompt_tokens": 9000, "n_ctx": 8192, "code": 400}),
    (11, 500, "the request exceeds the available context size, try increasing it", {"code": 500}),
    (12, 400, "Requested tokens (2285) exceed context window of 2048", {}),
    (14, 400, "prompt too long; exceeded max context length by 540451 tokens (ref: 1)", {}),
    (15, 400, "Trying to keep the first 111490 tokens when context the overflows. However, the model is loaded with "
     "context length of only 32768 tokens, which is not enough. Try to load the model with a larger context length, or "
     "provide a shorter input.", {}),
    (16, 400, "tokens to keep from the initial prompt is greater than the context length", {}),
    (17, 400, f"This endpoint's {WINDOW} 131072 tokens. However, you requested about 141607 tokens (10535 of "
     "text input, "
     "131072 in the output). Please reduce the length of either one, or use the \"middle-out\" transform to compress "
     "your prompt automatically.", {"code": 400}),
    (18, 400, f"This endpoint's {WINDOW} 262144 tokens. However, you requested about 284283 tokens (8963 of "
     "text input, "
     "13176 of tool input, 262144 in the output) or use the context-compression plugin", {"code": 400}),
    (19, 400, "Input length 300 exceeds the maximum allowed input length of 200 tokens.", {}),
    (20, 413, "Request too large for model `llama-3.1-70b-versatile` in organization `org_1` service tier "
     "`on_demand` on "
     "tokens per minute (TPM): Limit 6000, Requested 14368, please reduce your message size and try again",
     {"type": "tokens", "code": "rate_limit_exceeded"}),
    (21, 400, "Please reduce the length of the messages or completion.", {}),
    (22, 400, f"This model's {WINDOW} 131072 tokens. However, you requested 131134 tokens (122942 in the "
     "messages, 8192 in "
     "the completion). Please reduce the length of the messages or completion.", {"code": "invalid_request_error"}),
    (23, 400, "The input token count (132478) exceeds the maximum number of tokens allowed (131072).",
     {"status": "INVALID_ARGUMENT", "code": 400}),
    (24, 400, "Prompt contains 300000 tokens, too large for model with 131072 maximum context length", {}),
    (25, 400, "prompt is too long: 201130 tokens > 200000 maximum", {"type": "invalid_request_error"}),
    (26, 400, "input length and `max_tokens` exceed context limit: 187254 + 20000 > 204798, decrease input length or "
     "`max_tokens` and try again", {}),
    (27, 413, "Request exceeds the maximum size", {"type": "request_too_large"}),
    (28, 400, "Input is too long for requested model", {}),
    (28, 400, "The model returned the following errors: prompt is too long: 903884 tokens > 200000 maximum", {}),
    (29, 400, "Vertex Claude request uses 256984 input tokens; limit is 167232.", {}),
    (30, 400, "This model's maximum prompt length is 131072 but the request contains 136973 tokens.", {}),
    (31, 400, "Invalid request: Your request exceeded model token limit: 262144 (requested: 269030)", {}),
    (31, 400, "total message size 2100954 exceeds limit 2097152", {}),
    (32, 400, "String value length 20054016 exceeds the maximum allowed 20000000", {}),
    (33, 400, "invalid params, context window exceeds limit", {}),
    (34, 400, "prompt token count of 130000 exceeds the limit of 128000", {"code": "model_max_prompt_tokens_exceeded"}),
    (35, 400, "Current length is 9000 while limit is 8192", {}),
    (36, 400, "model_context_window_exceeded", {}),
    (38, 400, "Requested token count exceeds the model's maximum context length of 131072 tokens", {}),
    (38, 400, "Input length (265330) exceeds model's maximum context length (262144).", {}),
    (39, 400, "The prompt is too long: 267657, model maximum context length: 262143", {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("number", "status", "text", "more"), OVERFLOWS, ids=[f"{o[0]} {o[2][:30]}" for o in OVERFLOWS]
)
def test_a_full_context_is_known_by_its_words(number, status, text, more):
    """As an HTTP error in several bodies, and inside a stream, where only the text may tell."""
    inner = {"message": text} | more
    bodies = (
        {"error": inner},
        {"error": {"message": text}},
        {"error": text},
        [{"error": inner}],
        {"object": "error"} | inner,
    )
    assert [trouble(status, body, {}).status for body in (inner, *bodies, text)] == ["compact"] * 7
    with Server(error(status, bodies[0]), stream(HALF, bodies[0]), stream(HALF, bodies[1])) as server:
        assert [chat(server)[1].status for _ in range(3)] == ["compact"] * 3
    assert len(server.requests) == 3


NO_WORDS = {
    "4, by its code": error(400, {"error": {"message": "Invalid 'messages[5].content': string too long. "
    "Expected a string "
        "with maximum length 10485760, but got one of 10605342.", "code": "string_above_max_length"}}),
    "35, nothing at all": error(400),
    "35, nothing at all, 413": error(413),
    "36, as a reason": stream(chunk({}, "model_context_window_exceeded")),
    "37, a length of nothing": say("", finish="length", usage={"prompt_tokens": 9, "completion_tokens": 0}),
    "39, a page": error(413, "<html><head><title>413 Request Entity Too Large</title></head></html>"),
    "39, a page of another status": error(400, "<html><head><title>413 Request Entity Too Large</title></head></html>"),
    "17, in one piece": raw(json.dumps({"error": {"message": f"This endpoint's {WINDOW} 131072 tokens.", "code": 400}}),
                            content_type=JSON["content-type"], framing="length"),
    "in a Response": raw(happened({"type": "error", "code": "context_length_exceeded", "message": "Too long."})),
}  # fmt: skip


@pytest.mark.parametrize("reply", NO_WORDS.values(), ids=NO_WORDS)
def test_a_full_context_is_known_without_words(reply):
    with Server(reply) as server:
        assert chat(server)[1].status == "compact"


REFUSED = [
    (402, "This request requires more credits, or fewer max_tokens. The prompt is too long for your credits."),
    (400, "Invalid 'user': string too long. Expected a string with maximum length 64, but got one of 80."),
    (400, "'max_tokens' is too large: 99999. This model supports at most 16384 completion tokens."),
    (400, "messages: at least one message is required"),
    (400, "context is not a known parameter"),
]


@pytest.mark.parametrize(("status", "text"), REFUSED, ids=lambda value: str(value)[:30])
def test_other_refusals_are_no_full_context(status, text):
    body = {"error": {"message": text, "code": status}}
    with Server(error(status, body), stream(HALF, body)) as server:
        assert [chat(server)[1].status for _ in range(2)] == ["refused"] * 2


KINDS = [{"type": "invalid_request_error", "code": None}, {"type": "authentication_error"}, {"code": "invalid_api_key"},
         {"type": "invalid_request_error", "code": "model_not_found"}, {"code": "insufficient_quota"}]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: " ".join(map(str, kind.values())))
def test_an_error_in_a_stream_that_has_no_number_is_known_by_its_kind(kind):
    with Server(stream(HALF, {"error": {"message": "No.", **kind}}), say("ok")) as server:
        _, end = chat(server)
    assert isinstance(end, Trouble) and end.status == "refused"
