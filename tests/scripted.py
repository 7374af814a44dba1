"""A server for tests that plays a script of replies and checks every request: OpenAI's chat completions, and its
Responses API, on 127.0.0.1.

    with Server(calls(("run_shell_command", {"command": "ls"})), say("There is nothing.")) as server:
        ...  # an agent with --base_url server.url; then server.requests tells what it sent

By hand: python tests/scripted.py SCRIPT.json [--port N], with a list of entries such as {"say": "text"},
{"calls": [["run_shell_command", {"command": "ls"}]], "text": "I look."}, {"error": [503, {"error": "busy"}]} and, for
the Responses API, {"response": "text", "calls": [...]}.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import socket
import socketserver
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

# ------------------------------------------------------------------------------------------------------- the replies


@dataclass(frozen=True)
class Pause:
    """A part of a reply: wait so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Usage:
    """A part of a reply: the chunk with the token counts, where the request asks for it."""

    figures: dict | None  # these, or what can be counted
    text: str  # what the model wrote
    last: dict | None = None  # the event of the Responses API that has the counts in it


class Accident(Enum):
    """A part of a reply, and its last: what happens to the connection."""

    RESET = "it is reset"
    CUT = "it is closed, the end of the answer not told"
    HANG = "it stays open and silent until the client goes away or the server is closed"


RESET, CUT, HANG = Accident
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"  # where completions are asked for
HEAD = {"id": "chatcmpl-scripted", "created": 0, "model": "scripted"}
RESPONSE = {"id": "resp_scripted", "object": "response", "created_at": 0, "model": "scripted", "store": False}
STREAM, JSON = {"content-type": "text/event-stream"}, {"content-type": "application/json"}
DONE = b"data: [DONE]\n\n"
IDS = count(1)  # of tool calls


@dataclass(frozen=True)
class Reply:
    """What the server answers: bytes and texts, and between them pauses and an accident."""

    parts: tuple
    status: int = 200
    headers: dict = field(default_factory=dict)  # a value may be a list: the header is sent more than once
    framing: str = "chunked"  # how the end is told: "chunked", "length" or "close" (of the connection)
    whole: dict | None = None  # the choice for a client that did not ask for a stream
    place: str = ""  # where alone it can be the answer


@dataclass(frozen=True)
class Request:
    """What a client sent. `body` is the parsed JSON, {} when that is no object."""

    method: str
    path: str
    headers: dict  # names in lower case
    body: dict


def say(text, usage=True, finish="stop", pieces=None, pause=0) -> Reply:
    """A streamed answer. `pieces`: their number, or the texts themselves; `pause`: seconds between them."""
    deltas = [{"content": piece} for piece in split(text, pieces or 4)]
    parts = [part for delta in deltas for part in (event(chunk(delta)), Pause(pause))]
    return well_made(parts, {"role": "assistant", "content": text}, finish, usage)


def calls(*called, text="", ids=None, usage=True, finish="tool_calls") -> Reply:
    """Streamed tool calls, each a pair of name and arguments (a dict, or a str that is sent as it is)."""
    deltas, made = [{"content": piece} for piece in split(text, 2)], []
    for index, (name, arguments) in enumerate(called):
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        call_id = ids[index] if ids else f"call_{next(IDS)}"
        function = {"name": name, "arguments": written}
        made.append({"id": call_id, "type": "function", "function": function})
        deltas.append({"tool_calls": [{"index": index, **made[-1], "function": {**function, "arguments": ""}}]})
        for piece in split(written, 3):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    message = {"role": "assistant", "content": text or None, "tool_calls": made}
    return well_made([event(chunk(delta)) for delta in deltas], message, finish, usage)


def well_made(parts, message, finish, usage) -> Reply:
    """The whole of a well-made stream around these parts."""
    written = json.dumps([message["content"] or "", message.get("tool_calls", [])], ensure_ascii=False)
    counts = [] if usage is False else [Usage(None if usage is True else usage, written)]
    begin, end = event(chunk({"role": "assistant", "content": ""})), event(chunk({}, finish))
    whole = {"index": 0, "message": message, "finish_reason": finish}
    return Reply((begin, *parts, end, *counts, DONE), headers=STREAM, whole=whole, place=CHAT)


def response(text="", calls=(), reasoning="opaque", usage=True, status="completed", why=None, refusal="", ids=None):
    """A streamed answer of the Responses API: reasoning, a message and tool calls, whatever is given of them.
    `status`: completed, incomplete (`why`: the reason) or failed (`why`: the error)."""
    items = []
    if text or refusal:
        said = {"type": "output_text", "annotations": [], "logprobs": [], "text": text}
        content = [said] * bool(text) + [{"type": "refusal", "refusal": refusal}] * bool(refusal)
        items.append({"id": f"msg_{next(IDS)}", "type": "message", "content": content, "role": "assistant"})
    for index, (name, arguments) in enumerate(calls):
        number = next(IDS)
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        call = {"type": "function_call", "call_id": ids[index] if ids else f"call_{number}", "name": name}
        items.append({"id": f"fc_{number}", **call, "arguments": written})
    if reasoning:
        sealed = f"{reasoning}/{items[0]['id']}" if items else reasoning  # names the item that it came with
        summary = [{"type": "summary_text", "text": "**Thinking**"}]
        items.insert(0, {"id": f"rs_{next(IDS)}", "type": "reasoning", "encrypted_content": sealed, "summary": summary})
    broken_off = {"status": "incomplete"} if status == "incomplete" else {"status": "completed"}
    done = [item if item["type"] == "reasoning" else item | broken_off for item in items]
    parts = [part for place, item in enumerate(done) for part in item_events(place, item)]
    about = {"incomplete_details": None, "error": None, "output": done, "status": status}
    if status == "incomplete":
        about["incomplete_details"] = {"reason": why or "max_output_tokens"}
    elif status == "failed":
        about["error"] = why or {"code": "server_error", "message": "The server had an error."}
    begun = {**RESPONSE, "status": "in_progress", "output": [], "usage": None}
    last = {"type": f"response.{status}", "response": RESPONSE | about}
    counts = Usage({} if usage is False else None if usage is True else usage, json.dumps(items), last)
    begin = [happened({"type": f"response.{kind}", "response": begun}) for kind in ("created", "in_progress")]
    return Reply((*begin, *parts, counts), headers=STREAM, place=RESPONSES)


def item_events(place, item) -> Iterator[bytes]:
    """The events that make up an output item."""
    here, kind = {"item_id": item["id"], "output_index": place}, item["type"]
    empty = {"reasoning": {"summary": []}, "message": {"content": []}, "function_call": {"arguments": ""}}[kind]
    begun = item | empty | ({} if kind == "reasoning" else {"status": "in_progress"})
    yield happened({"type": "response.output_item.added", "output_index": place, "item": begun})
    for index, part in enumerate(item.get("summary", [])):
        told = {"type": "response.reasoning_summary_text.delta", **here, "summary_index": index}
        yield happened({**told, "delta": part["text"]})
    for index, part in enumerate(item.get("content", [])):
        told, name = {**here, "content_index": index}, "text" if "text" in part else "refusal"
        yield happened({"type": "response.content_part.added", **told, "part": {**part, name: ""}})
        for piece in split(part[name], 4):
            yield happened({"type": f"response.{part['type']}.delta", **told, "delta": piece})
        yield happened({"type": f"response.{part['type']}.done", **told, name: part[name]})
        yield happened({"type": "response.content_part.done", **told, "part": part})
    if kind == "function_call":
        for piece in split(item["arguments"], 3):
            yield happened({"type": "response.function_call_arguments.delta", **here, "delta": piece})
        yield happened({"type": "response.function_call_arguments.done", **here, "arguments": item["arguments"]})
    yield happened({"type": "response.output_item.done", "output_index": place, "item": item})


def stream(*chunks, done=True, headers=None) -> Reply:
    """Events as they are given: dicts become `data:` lines, all else goes out verbatim."""
    parts = [event(part) if isinstance(part, dict) else part for part in chunks]
    return Reply((*parts, *[DONE][: int(done)]), headers=STREAM | (headers or {}))


def raw(*parts, content_type="text/event-stream", status=200, headers=None, framing="chunked") -> Reply:
    """Bytes as they are given, and between them `Pause(seconds)`, RESET, CUT and HANG."""
    return Reply(parts, status, {"content-type": content_type} | (headers or {}), framing)


def error(status, body="", headers=None) -> Reply:
    """An HTTP error. `body`: a dict or list, which becomes JSON, or str or bytes, sent as they are."""
    kind = "text/plain" if isinstance(body, (str, bytes)) else "application/json"
    data = body if isinstance(body, (str, bytes)) else json.dumps(body, ensure_ascii=False)
    return Reply((data,), status, {"content-type": kind} | (headers or {}), "length")


def chunk(delta, finish=None, **more) -> dict:
    """A chunk of a streamed completion."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {**HEAD, "object": "chat.completion.chunk", "choices": [choice], **more}


def event(data) -> bytes:
    return b"data: " + encode(json.dumps(data, ensure_ascii=False)) + b"\n\n"


def happened(data) -> bytes:
    """An event of the Responses API, which has its type twice."""
    return b"event: %b\n" % data["type"].encode() + event(data)


def encode(text: str | bytes) -> bytes:
    """Bytes of a text, also of one with half a surrogate pair, which goes out as an escape like any server's."""
    return text if isinstance(text, bytes) else text.encode("utf-8", "backslashreplace")


def split(text, pieces) -> list[str]:
    """The text in so many pieces; a list is already one."""
    if not isinstance(pieces, int):
        return list(pieces)
    width = max(1, -(-len(text) // pieces))
    return [text[start : start + width] for start in range(0, len(text), width)]


def tokens(*values) -> int:
    """The tokens that values made of JSON are taken to have: a quarter of their bytes."""
    written = (json.dumps(value, ensure_ascii=False, separators=(",", ":")) for value in values)
    return sum(len(encode(text)) for text in written) // 4


def usage_event(part, request, previous) -> list:
    """The part as it goes out: token counts become a chunk, or nothing where they were not asked for."""
    if not isinstance(part, Usage):
        return [part]
    if part.last:
        return [
            happened({**part.last, "response": {**part.last["response"], "usage": renamed(part, request, previous)}})
        ]
    if not (request.body.get("stream_options") or {}).get("include_usage"):
        return []
    return [event({**chunk({}), "choices": [], "usage": figures(part, request.body, previous)})]


def figures(usage, body, previous) -> dict:
    """The token counts of a request; what it begins with like the previous one comes from the cache."""
    if usage.figures is not None:
        return usage.figures
    messages, tools, cached, completion = conversation(body), body.get("tools", []), 0, tokens(usage.text)
    if previous and previous.get("tools", []) == tools:
        cached = tokens(tools, messages[: common(conversation(previous) or [], messages or [])])
    counts = {"prompt_tokens": tokens(messages, tools), "completion_tokens": completion}
    total = sum(counts.values())
    return {**counts, "total_tokens": total, "prompt_tokens_details": {"cached_tokens": cached}}


def renamed(usage, request, previous) -> dict | None:
    """The token counts under the names of the Responses API."""
    if usage.figures is not None:
        return usage.figures or None
    counts = figures(usage, request.body, previous)
    return {
        "input_tokens": counts["prompt_tokens"],
        "input_tokens_details": counts["prompt_tokens_details"],
        "output_tokens": counts["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": counts["completion_tokens"] // 2},
        "total_tokens": counts["total_tokens"],
    }


def conversation(body):
    """The messages of a request, or its items."""
    return body.get("input") if "input" in body else body.get("messages")


# -------------------------------------------------------------------------------------------------------- the checks

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
SURROGATE = re.compile("[\ud800-\udfff]")


def breaches(body, previous=None) -> list[str]:
    """What is wrong with a request that some server would refuse, or that changes what the previous one said."""
    messages = conversation(body) if isinstance(body, dict) else None
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return ["the body has no list of messages"]
    found = [*check_parameters(body), *check_roles(messages), *check_texts(body)]
    check, answers = (check_item, check_outputs) if "input" in body else (check_message, check_answers)
    for place, message in enumerate(messages):
        about = message.get("role") or message.get("type")
        found += [f"message {place} ({about}): {fault}" for fault in check(message)]
    found += [*answers(messages), *(check_stateless(body) if "input" in body else [])]
    alike = previous and ("input" in previous) == ("input" in body) and conversation(previous)
    return found + (list(check_extension(body, previous)) if alike else [])


def check_parameters(body) -> Iterator[str]:
    for name, value in body.items():
        if value is None:
            yield f"the parameter {name} is null"
    if "tools" in body and not body["tools"]:
        yield "tools is there and empty"


def check_roles(messages) -> Iterator[str]:
    roles = [message.get("role", message.get("type")) for message in messages]
    if roles[:1] != ["system"]:
        yield "the first message is not the system's"
    if roles.count("system") != 1:
        yield f"there are {roles.count('system')} system messages"
    if "user" not in roles:
        yield "there is no user message"
    elif roles[1:2] != ["user"]:
        yield "the message after the system's is not the user's"
    for place, pair in enumerate(zip(roles, roles[1:], strict=False)):
        if pair == ("user", "user"):
            yield f"messages {place} and {place + 1} are both the user's"


def check_message(message) -> Iterator[str]:
    if message.get("role") not in ("system", "user", "assistant", "tool"):
        yield "unknown role"
    if not isinstance(message.get("content"), str):
        yield f"the content is no text but {message.get('content', 'missing')!r}"
    for name, value in message.items():
        if value is None and name != "content":
            yield f"{name} is null"
    empty = not str(message.get("content") or "").strip()
    if empty and message.get("role") == "user":
        yield "it is empty"
    if message.get("role") != "assistant":
        return
    if empty and not message.get("tool_calls"):
        yield "neither text nor calls"
    if "tool_calls" in message and not message["tool_calls"]:
        yield "tool_calls is there and empty"
    ids = [call.get("id") for call in message.get("tool_calls") or []]
    if len(set(map(str, ids))) != len(ids):
        yield f"call ids are not unique: {ids}"
    for call in message.get("tool_calls") or []:
        yield from check_call(call)


def check_call(call) -> Iterator[str]:
    function = call.get("function") or {}
    if not isinstance(call.get("id"), str) or not call["id"]:
        yield f"{call.get('id')!r} is no call id"
    if call.get("type") != "function":
        yield f"{call.get('type')!r} is no type of call"
    if not NAME.fullmatch(str(function.get("name") or "")):
        yield f"{function.get('name')!r} is no function name"
    if not is_object(function.get("arguments")):
        yield f"the arguments are no JSON of an object: {function.get('arguments')!r}"


def is_object(text) -> bool:
    """Whether the text is strict JSON of an object."""
    return isinstance(text, str) and isinstance(parsed(text), dict)


def parsed(text: str | bytes):
    """The value of strict JSON, None when it is not."""

    def refuse(constant):
        raise ValueError(f"{constant} is not JSON")

    with suppress(ValueError, RecursionError):
        return json.loads(text, parse_constant=refuse)


def check_answers(messages) -> Iterator[str]:
    due = []  # ids of calls without an answer
    for place, message in enumerate(messages):
        if message.get("role") == "tool":
            answered = message.get("tool_call_id")
            if due[:1] != [answered]:
                yield f"message {place}: answers {answered!r} where {due[:1]} is due"
            due = [call_id for call_id in due if call_id != answered]
            continue
        if due:
            yield f"message {place}: the calls {due} before it have no answer"
        due = [call.get("id") for call in message.get("tool_calls") or []]
    if due:
        yield f"the calls {due} at the end have no answer"


def check_stateless(body) -> Iterator[str]:
    """What is wrong with a request to the Responses API as a whole: nothing may be kept by the server."""
    if body.get("store") is not False:
        yield f"store is {body.get('store', 'missing')!r}"
    if "reasoning.encrypted_content" not in (body.get("include") or []):
        yield f"the encrypted reasoning is not asked for: include is {body.get('include', 'missing')!r}"
    for name in ("messages", "stream_options", "max_tokens", "max_completion_tokens", "reasoning_effort"):
        if name in body:
            yield f"the Responses API has no parameter {name}"
    for tool in body.get("tools", []):
        if "function" in tool or not NAME.fullmatch(str(tool.get("name"))):
            yield f"{json.dumps(tool)[:80]} is no tool of the Responses API"


def check_item(item) -> Iterator[str]:
    """What is wrong with an item of the input."""
    kind = item.get("type", "message")
    if kind == "message":
        if item.get("role") not in ("system", "user", "assistant"):
            yield "unknown role"
        if not item.get("content") or (isinstance(item["content"], str) and not item["content"].strip()):
            yield "it is empty"
        if "tool_calls" in item or "tool_call_id" in item:
            yield "the Responses API has no tool_calls"
    elif kind == "function_call":
        yield from check_call({"id": item.get("call_id"), "type": "function", "function": item})
    elif kind == "function_call_output":
        if not isinstance(item.get("output"), str):
            yield f"the output is no text but {item.get('output', 'missing')!r}"
    elif kind != "reasoning":
        yield f"unknown type {kind}"
    elif not item.get("encrypted_content"):
        yield "it has no encrypted content"


def check_outputs(items) -> Iterator[str]:
    """Whether each call is answered once before the user speaks again, and reasoning followed by what it came with."""
    due = []  # ids of calls without an answer
    for place, (item, following) in enumerate(zip(items, [*items[1:], {}], strict=True)):
        kind = item.get("type", "message")
        if kind == "function_call":
            if item.get("call_id") in due:
                yield f"message {place}: the call {item.get('call_id')} is there twice"
            due.append(item.get("call_id"))
        elif kind == "function_call_output":
            if item.get("call_id") not in due:
                yield f"message {place}: answers {item.get('call_id')!r} where {due[:1]} is due"
            due = [call_id for call_id in due if call_id != item.get("call_id")]
        elif kind == "message" and item.get("role") != "assistant" and due:
            yield f"message {place}: the calls {due} before it have no answer"
        elif kind == "reasoning":
            _, _, mate = str(item.get("encrypted_content")).partition("/")
            if not following or following.get("id") != (mate or following.get("id")):
                yield f"message {place}: the reasoning is not followed by {mate or 'anything'}"
    if due:
        yield f"the calls {due} at the end have no answer"


def check_texts(body) -> Iterator[str]:
    for text in texts(body):
        if SURROGATE.search(text):
            yield f"half a surrogate pair in {text[:80]!r}"
        if "\0" in text:
            yield f"a NUL in {text[:80]!r}"


def texts(value) -> Iterator[str]:
    """Every text in a value made of JSON, names included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, part in value.items():
            yield name
            yield from texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from texts(part)


def check_extension(body, previous) -> Iterator[str]:
    if body.get("tools") != previous.get("tools"):
        yield "the tools are not those of the previous request"
    before, now = conversation(previous), conversation(body)
    same = common(before, now)
    if same == len(before) or (same == len(before) - 1 and same < len(now) and grown(before[same], now[same])):
        return
    was, became = (json.dumps(messages[same : same + 1])[:300] for messages in (before, now))
    yield f"message {same} of the previous request was changed, from {was} to {became}"


def common(before, now) -> int:
    """The number of messages with which both begin."""
    pairs = zip(before, now, strict=False)
    return next((place for place, (old, new) in enumerate(pairs) if old != new), min(len(before), len(now)))


def grown(old, new) -> bool:
    """Whether it is the user's message with more at its end."""
    if old.get("role") != "user" or not str(new.get("content")).startswith(str(old.get("content"))):
        return False
    return new == {**old, "content": new.get("content")}


# -------------------------------------------------------------------------------------------------------- the server

Entry = Reply | Callable[[Request], Reply]  # of a script


class Server:
    """Plays the script, a reply for each POST to /v1/chat/completions or /v1/responses; an entry may be a function
    from the request to a reply. `prefix`: each request must extend the one before; `check`: whether requests are
    checked at all; `pages`: paths of GET and the JSON that is there."""

    def __init__(self, *script: Entry, port=0, models=("scripted",), pages=None, prefix=True, check=True):
        self.script, self.models, self.pages, self.prefix, self.check = list(script), models, pages or {}, prefix, check
        self.requests: list[Request] = []
        self.gets: list[str] = []
        self.breaches: list[str] = []
        self.played, self.previous = 0, None  # completion requests so far, and the body of the last
        self.closing, self.connections = threading.Event(), set()
        self.arrived = threading.Condition()  # guards all of the above
        self.http = Listener(("127.0.0.1", port), Handler)
        self.http.owner = self
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"

    def __enter__(self) -> Server:
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, kind, *_):
        self.closing.set()
        self.http.shutdown()
        self.http.server_close()
        with self.arrived:
            for connection in self.connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        if self.breaches and not kind:
            raise AssertionError("requests that break the rules:\n" + "\n".join(self.breaches))

    def wait(self, requests=1, timeout=15) -> Request:
        """Blocks until so many requests have come, and gives back that one. TimeoutError if they do not come."""
        with self.arrived:
            if not self.arrived.wait_for(lambda: len(self.requests) >= requests, timeout):
                raise TimeoutError(f"{len(self.requests)} of {requests} requests came in {timeout} seconds")
            return self.requests[requests - 1]

    def answer(self, request: Request) -> tuple[Reply, dict | None]:
        """Takes a POST into the books; gives back the reply, and the body of the completion request before it."""
        with self.arrived:
            self.requests.append(request)
            self.arrived.notify_all()
            if not is_completion(request.path):
                return error(404, {"error": {"message": f"nothing is served at {request.path}"}}), None
            previous, self.previous = self.previous, request.body
            place, self.played = self.played, self.played + 1
            if self.check:
                found = breaches(request.body, previous if self.prefix else None)
                self.breaches += [f"request {place + 1}: {fault}" for fault in found]
        if place >= len(self.script):
            return error(400, {"error": {"message": "the script has no more replies"}}), previous
        entry = self.script[place]
        reply = entry if isinstance(entry, Reply) else self.made(entry, request)
        if self.check and reply.place and reply.place != request.path.partition("?")[0]:
            with self.arrived:
                self.breaches.append(f"request {place + 1}: to {request.path}, and not to {reply.place}")
        return reply, previous

    def made(self, entry: Callable[[Request], Reply], request: Request) -> Reply:
        """The reply that a function of the script makes; its failure is a breach."""
        try:
            return entry(request)
        except Exception:
            with self.arrived:
                self.breaches.append(f"the script itself failed: {traceback.format_exc()}")
            return error(500, {"error": {"message": "the script failed"}})


class Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    owner: Server

    def server_bind(self):  # without the look-up of a host name
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]

    def handle_error(self, request, client_address):
        """A client that goes away is no error; all else is the test's to know."""
        if not isinstance(sys.exc_info()[1], OSError):
            with self.owner.arrived:
                self.owner.breaches.append(f"the server itself failed: {traceback.format_exc()}")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Listener

    def setup(self):
        super().setup()
        self.owner = self.server.owner
        with self.owner.arrived:
            self.owner.connections.add(self.connection)

    def finish(self):
        with self.owner.arrived:
            self.owner.connections.discard(self.connection)
        super().finish()

    def log_message(self, *_):
        pass

    def do_GET(self):
        with self.owner.arrived:
            self.owner.gets.append(self.path)
        reply = error(404, {"error": {"message": "not found"}})
        if self.path in self.owner.pages:
            reply = Reply((json.dumps(self.owner.pages[self.path]),), 200, JSON, "length")
        elif self.path == "/v1/models" and self.owner.models is not None:
            listed = [{"id": name, "object": "model", "created": 0} for name in self.owner.models]
            reply = Reply((json.dumps({"object": "list", "data": listed}),), 200, JSON, "length")
        self.play(reply, list(reply.parts))

    def do_POST(self):
        size = int(self.headers.get("content-length") or 0)
        if len(data := self.rfile.read(size)) < size:  # the client went away while it spoke
            self.close_connection = True
            return
        body = parsed(data)
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, self.path, headers, body if isinstance(body, dict) else {})
        reply, previous = self.owner.answer(request)
        if reply.whole and not request.body.get("stream"):
            reply = unstreamed(reply, request, previous)
        self.play(reply, [used for part in reply.parts for used in usage_event(part, request, previous)])

    def play(self, reply: Reply, parts: list):
        """Sends a reply: its head, and these parts."""
        parts = [encode(part) if isinstance(part, (str, bytes)) else part for part in parts]
        headers = {name.lower(): value for name, value in reply.headers.items()}
        if reply.framing == "length":
            size = sum(len(part) for part in parts if isinstance(part, bytes))
            headers = {"content-length": size, **headers}
        elif reply.framing == "chunked":
            headers["transfer-encoding"] = "chunked"
        else:
            headers["connection"] = "close"
        self.send_response(reply.status)
        for name, values in headers.items():
            for value in values if isinstance(values, (list, tuple)) else [values]:
                self.send_header(name, str(value))
        self.end_headers()
        chunked = reply.framing == "chunked"
        if all(self.perform(part, chunked) for part in parts) and chunked:
            self.wfile.write(b"0\r\n\r\n")

    def perform(self, part, chunked: bool) -> bool:
        """Does what a part says. False when nothing can come after it."""
        if isinstance(part, Pause):
            return not self.owner.closing.wait(part.seconds)
        if isinstance(part, bytes):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part) if chunked and part else part)
            return True
        self.close_connection = True
        if part is HANG:
            self.hang()
        if part is RESET:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            os.close(self.connection.detach())
        return False

    def hang(self):
        """Comes back when the client has gone or the server is closed."""
        while not self.owner.closing.wait(0.01):
            if select.select([self.connection], [], [], 0)[0] and not self.connection.recv(1, socket.MSG_PEEK):
                return


def unstreamed(reply: Reply, request: Request, previous) -> Reply:
    """The reply for a client that wants the completion in one piece."""
    counts = [figures(part, request.body, previous) for part in reply.parts if isinstance(part, Usage)]
    whole = {**HEAD, "object": "chat.completion", "choices": [reply.whole], **({"usage": counts[0]} if counts else {})}
    return Reply((json.dumps(whole),), 200, JSON, "length")


def is_completion(path: str) -> bool:
    return path.partition("?")[0] in (CHAT, RESPONSES)


# ---------------------------------------------------------------------------------------------------------- by hand


def read_script(path: str) -> list[Reply]:
    """The replies that a file describes, a list of entries as the docstring of this module shows them."""
    makers = {"response": response, "say": say, "error": lambda both: error(*both)}
    makers["calls"] = lambda several, **more: calls(*several, **more)
    replies = []
    with open(path, encoding="utf-8") as file:
        for entry in json.load(file):
            kind = next((name for name in makers if name in entry), None)
            if not kind:
                raise ValueError(f"{path}: an entry must have one of {', '.join(makers)}: {entry}")
            replies.append(makers[kind](entry.pop(kind), **entry))
    return replies


def serve(server: Server):
    """Tells what comes in and what is wrong with it, until Ctrl-C."""
    told = warned = 0
    while True:
        for number, request in enumerate(server.requests[told:], told + 1):
            messages = conversation(request.body) or [{}]
            print(f"{number}: {len(messages)} messages, the last: {json.dumps(messages[-1])[:300]}", flush=True)
        for fault in server.breaches[warned:]:
            print(f"! {fault}", flush=True)
        told, warned = len(server.requests), len(server.breaches)
        time.sleep(0.1)


def main():
    parser = argparse.ArgumentParser(description="Serves scripted replies of a model on 127.0.0.1.")
    parser.add_argument("script", help="a JSON file, see the head of this file")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    try:
        script = read_script(options.script)
    except (OSError, ValueError, TypeError) as fault:
        parser.error(str(fault))
    with suppress(KeyboardInterrupt), Server(*script, port=options.port, prefix=False) as server:
        print(f"{server.url} (Ctrl-C ends it)", flush=True)
        serve(server)


if __name__ == "__main__":
    main()
