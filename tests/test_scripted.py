"""The scripted server: every broken request is noticed, and every reply goes out as the script says."""

import http.client
import json
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
import scripted
from scripted import CUT, HANG, RESET, Pause, Server, breaches, calls, chunk, error, raw, say, stream

SYSTEM = {"role": "system", "content": "You are a test."}
USER = {"role": "user", "content": "hi"}
ANSWER = {"role": "assistant", "content": "hello"}


def call(call_id="a", name="list_files", arguments="{}"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(*made):
    return {"role": "assistant", "content": "", "tool_calls": list(made)}


def result(call_id="a", content="(empty)"):
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def body(*messages, **more):
    return {"model": "m", "messages": list(messages), **more}


GOOD = body(SYSTEM, USER, calling(call("a"), call("b")), result("a"), result("b"), USER, ANSWER, USER, tools=[{"a": 1}])


def test_a_good_request_breaks_nothing():
    assert breaches(GOOD) == []
    assert breaches(GOOD, previous=body(*GOOD["messages"][:5], tools=[{"a": 1}])) == []
    assert breaches(GOOD, previous=GOOD) == []


BROKEN = {
    "no list of messages": [{"model": "m"}, body("text")],
    "first message is not the system's": [body(USER), body(USER, SYSTEM)],
    "2 system messages": [body(SYSTEM, SYSTEM, USER), body(SYSTEM, USER, SYSTEM)],
    "0 system messages": [body(USER)],
    "no user message": [body(SYSTEM), body(SYSTEM, ANSWER)],
    "after the system's is not the user's": [body(SYSTEM, ANSWER, USER)],
    "both the user's": [body(SYSTEM, USER, USER)],
    "unknown role": [body(SYSTEM, USER, {"role": "developer", "content": "x"})],
    "it is empty": [body(SYSTEM, {"role": "user", "content": ""}), body(SYSTEM, {"role": "user", "content": "\n"})],
    "neither text nor calls": [body(SYSTEM, USER, {"role": "assistant", "content": ""})],
    "tool_calls is there and empty": [body(SYSTEM, USER, {**ANSWER, "tool_calls": []})],
    "ids are not unique": [body(SYSTEM, USER, calling(call("a"), call("a")), result("a"), result("a"))],
    "is no call id": [body(SYSTEM, USER, calling(call("")), result("")), body(SYSTEM, USER, calling(call(None)))],
    "is no type of call": [body(SYSTEM, USER, calling({**call(), "type": None}), result())],
    "at the end have no answer": [
        body(SYSTEM, USER, calling(call())),
        body(SYSTEM, USER, calling(call("b")), result()),
    ],
    "before it have no answer": [body(SYSTEM, USER, calling(call()), USER, result())],
    "answers 'a' where": [
        body(SYSTEM, USER, result()),
        body(SYSTEM, USER, calling(call()), result(), result()),
        body(SYSTEM, USER, calling(call("b"), call("a")), result("a"), result("b")),
    ],
    "no JSON of an object": [
        body(SYSTEM, USER, calling(call(arguments=arguments)), result())
        for arguments in ("", "null", "[]", "5", '{"a": ', '{"a": NaN}', '{"a": "\n"}', '"{}"', {}, None)
    ],
    "is no function name": [
        body(SYSTEM, USER, calling(call(name=name)), result()) for name in ("", "a b", "os.system", "x" * 65, None)
    ],
    "the content is no text": [
        body(SYSTEM, {"role": "user", "content": None}),
        body(SYSTEM, {"role": "user", "content": [{"type": "text", "text": "hi"}]}),
        body(SYSTEM, {"role": "user"}),
        body(SYSTEM, USER, {**calling(call()), "content": None}, result()),
        body(SYSTEM, USER, calling(call()), result(content=None)),
    ],
    "refusal is null": [body(SYSTEM, USER, {**ANSWER, "refusal": None})],
    "half a surrogate pair": [
        body(SYSTEM, {"role": "user", "content": "\ud83d"}),
        body(SYSTEM, USER, calling(call(arguments='{"a": "\udcff"}')), result()),
        body(SYSTEM, USER, tools=[{"description": "\ud83d"}]),
        body(SYSTEM, {**USER, "\udc00": ""}),
    ],
    "a NUL": [body(SYSTEM, {"role": "user", "content": "a\0b"})],
    "the parameter max_tokens is null": [body(SYSTEM, USER, max_tokens=None)],
    "tools is there and empty": [body(SYSTEM, USER, tools=[])],
}


@pytest.mark.parametrize(("fault", "broken"), [(fault, one) for fault, several in BROKEN.items() for one in several])
def test_a_broken_request_is_noticed(fault, broken):
    assert any(fault in found for found in breaches(broken)), breaches(broken)


CHANGED = {
    "message 0 of": body({"role": "system", "content": "another"}, USER, ANSWER),
    "message 1 of": body(SYSTEM, {"role": "user", "content": "hi, and more"}, ANSWER),
    "message 2 of": body(SYSTEM, USER, {"role": "assistant", "content": "hello, and more"}),
    "the tools are not": body(SYSTEM, USER, ANSWER, tools=[{"a": 1}]),
}


@pytest.mark.parametrize(("fault", "changed"), CHANGED.items())
def test_a_changed_prefix_is_noticed(fault, changed):
    assert any(fault in found for found in breaches(changed, previous=body(SYSTEM, USER, ANSWER)))
    assert breaches(changed) == []


def test_only_the_latest_words_of_the_user_may_grow():
    grown = {"role": "user", "content": "hi\n\nand more"}
    assert breaches(body(SYSTEM, grown), previous=body(SYSTEM, USER)) == []
    assert len(breaches(body(SYSTEM, USER), previous=body(SYSTEM, grown))) == 1
    assert len(breaches(body(SYSTEM, USER), previous=body(SYSTEM, USER, ANSWER))) == 1


# ------------------------------------------------------------------------------------------- what the server answers

HI = body(SYSTEM, USER, stream=True, stream_options={"include_usage": True})


def post(server, sent=HI, path="/v1/chat/completions"):
    """Status and bytes of the answer to a request."""
    data = sent if isinstance(sent, bytes) else json.dumps(sent).encode()
    return exchange(server, "POST", path, data)


def exchange(server, method, path, data=None, timeout=5):
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=timeout)
    try:
        connection.request(method, path, data)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def events(data):
    """The parsed `data:` lines of a stream that ends as it should."""
    lines = [line.removeprefix("data: ") for line in data.decode().split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def deltas(chunks, name):
    return [choice["delta"][name] for c in chunks for choice in c["choices"] if name in choice["delta"]]


def test_say_streams_text_and_usage():
    with Server(say("Hello, world.", pause=0.001)) as server:
        status, data = post(server)
    chunks = events(data)
    assert status == 200
    assert deltas(chunks, "content") == ["", "Hell", "o, w", "orld", "."]
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["prompt_tokens"] == scripted.tokens(HI["messages"], [])
    assert server.requests[0].body == HI and server.requests[0].path == "/v1/chat/completions"


def test_usage_comes_only_when_asked_for_and_tells_what_is_cached():
    with Server(say("one"), say("two", usage=False), say("three", usage={"prompt_tokens": 9}), say("four")) as server:
        assert all("usage" not in c for c in events(post(server, body(SYSTEM, USER, stream=True))[1]))
        assert all("usage" not in c for c in events(post(server)[1]))
        assert events(post(server)[1])[-1]["usage"] == {"prompt_tokens": 9}
        longer = {**HI, "messages": [*HI["messages"], ANSWER, USER]}
        usage = events(post(server, longer)[1])[-1]["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": scripted.tokens(HI["messages"], [])}
    assert usage["prompt_tokens"] == scripted.tokens(longer["messages"], [])


def test_calls_are_streamed_in_pieces():
    with Server(calls(("f", {"a": "é"}), ("g", "{broken"), text="I look.", ids=["x", "y"])) as server:
        chunks = events(post(server)[1])
    fragments = [fragment for several in deltas(chunks, "tool_calls") for fragment in several]
    assert [f["id"] for f in fragments if "id" in f] == ["x", "y"]
    assert [f["function"]["name"] for f in fragments if "id" in f] == ["f", "g"]
    assert "".join(f["function"]["arguments"] for f in fragments if f["index"] == 0) == '{"a": "é"}'
    assert "".join(f["function"]["arguments"] for f in fragments if f["index"] == 1) == "{broken"
    assert len(fragments) > 4 and "".join(deltas(chunks, "content")) == "I look."
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_client_that_does_not_stream_gets_one_piece():
    with Server(say("Hello.")) as server:
        whole = json.loads(post(server, body(SYSTEM, USER))[1])
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": "Hello."}
    assert whole["usage"]["prompt_tokens"] == scripted.tokens([SYSTEM, USER], [])


def test_error_sends_status_headers_and_body():
    with Server(error(429, {"error": "wait"}, {"Retry-After": "2"}), error(502, "<html>"), error(413)) as server:
        assert post(server) == (429, b'{"error": "wait"}')
        assert post(server) == (502, b"<html>")
        assert post(server) == (413, b"")


def test_stream_and_raw_send_what_they_are_given():
    half = chunk({"content": "\ud83d"})
    with Server(stream(half, ": ping\n\n"), raw(b"data: {", "}", framing="close"), stream(done=False)) as server:
        assert b'"content": "\\ud83d"' in (sent := post(server)[1]) and sent.endswith(b": ping\n\ndata: [DONE]\n\n")
        assert post(server) == (200, b"data: {}")
        assert post(server) == (200, b"")


def test_a_script_may_have_functions():
    with Server(lambda request: say(f"You said {request.body['messages'][-1]['content']}.", pieces=1)) as server:
        assert b"You said hi." in post(server)[1]


def test_the_end_of_the_script():
    with Server() as server:
        status, data = post(server)
    assert (status, json.loads(data)) == (400, {"error": {"message": "the script has no more replies"}})


def test_accidents():
    with Server(raw(b"data: x", CUT), raw(b"data: x", Pause(0.05), RESET), raw(b"data: x", HANG), say("ok")) as server:
        with pytest.raises(http.client.IncompleteRead):
            post(server)
        with pytest.raises((ConnectionResetError, http.client.IncompleteRead)):
            post(server)
        with pytest.raises(TimeoutError):
            exchange(server, "POST", "/v1/chat/completions", json.dumps(HI).encode(), timeout=0.1)
        assert post(server)[0] == 200


def test_closing_the_server_ends_what_hangs():
    with Server(raw(HANG)) as server:
        connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=5)
        connection.request("POST", "/v1/chat/completions", json.dumps(HI))
        assert server.wait().body == HI
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        connection.getresponse().read()


def test_models():
    with Server(models=["a", "b"]) as server, Server(models=None) as other:
        assert [model["id"] for model in json.loads(exchange(server, "GET", "/v1/models")[1])["data"]] == ["a", "b"]
        assert exchange(other, "GET", "/v1/models")[0] == 404
    assert server.gets == ["/v1/models"] and server.requests == []


def test_another_path_takes_no_reply():
    with Server(say("ok")) as server:
        assert post(server, path="/v1/completions")[0] == 404
        assert post(server)[0] == 200
    assert [request.path for request in server.requests] == ["/v1/completions", "/v1/chat/completions"]


def test_a_client_that_goes_away_while_it_speaks_has_said_nothing():
    with Server(say("ok")) as server:
        with socket.create_connection(("127.0.0.1", urlsplit(server.url).port)) as connection:
            connection.sendall(b'POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 999\r\n\r\n{"messages": [')
        assert post(server)[0] == 200
    assert len(server.requests) == 1


def test_breaches_are_raised_at_the_end():
    with pytest.raises(AssertionError, match="request 2: the first message is not the system's"), Server() as server:
        post(server)
        post(server, body(USER))
    with pytest.raises(AssertionError, match="no list of messages"), Server() as server:
        post(server, b"{")
    with pytest.raises(AssertionError, match="the script itself failed"), Server(lambda request: 1 / 0) as server:
        post(server)


def test_breaches_do_not_hide_another_failure():
    with pytest.raises(KeyError), Server() as server:
        post(server, body(USER))
        raise KeyError


def test_prefix_and_check_can_be_left_out():
    with Server(prefix=False) as server:
        post(server)
        post(server, body({"role": "system", "content": "another"}, USER))
    with Server(check=False) as server:
        post(server, body(USER))


def test_by_hand(tmp_path):
    entries = [{"calls": [["list_files", {}]], "text": "I look."}, {"say": "hello", "pause": 0}, {"error": [503, {}]}]
    (tmp_path / "script.json").write_text(json.dumps(entries))
    command = [sys.executable, str(Path(scripted.__file__)), str(tmp_path / "script.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            server = SimpleNamespace(url=process.stdout.readline().split()[0])
            assert [post(server)[0] for _ in range(4)] == [200, 200, 503, 400]
        finally:
            process.terminate()
