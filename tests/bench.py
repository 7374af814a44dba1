"""Speed and memory of the agent: python tests/bench.py [GROUP...]

Each figure stands beside what it is held against: the same of a bare loop, of an earlier time, or the most it may be.
Loop and agent run as processes, with the same SDK, shell and scripted server, in turns. Times are taken by the server
when a request arrives; of several runs the best counts, for both. The exit code is 1 when a bound does not hold.
"""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from statistics import median

from scripted import HANG, Pause, Reply, Request, Server, calls, chunk, common, event, raw, say

AGENT = Path(__file__).resolve().parent.parent / "tinyagent.py"
sys.path.insert(0, str(AGENT.parent))
import tinyagent  # noqa: E402 (found through the line above)

LOOP = r"""
import json
import subprocess
import sys

import openai

TOOL = {
    "type": "function",
    "function": {
        "name": "run_shell_command",
        "description": "Run a bash command; returns exit code, stdout and stderr.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}
client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
messages = [{"role": "system", "content": "You are a coding agent."}, {"role": "user", "content": sys.argv[2]}]
options = {"model": "scripted", "messages": [], "stream": True, "stream_options": {"include_usage": True}}
while True:
    text, calls = "", {}
    body = {"messages": messages, "tools": [TOOL]}
    with client.chat.completions.create(**options, extra_body=body) as stream:
        for choice in (choice for chunk in stream for choice in chunk.choices):
            text += choice.delta.content or ""
            print(choice.delta.content or "", end="", flush=True)
            for part in choice.delta.tool_calls or []:
                function = {"name": part.function.name, "arguments": ""}
                call = calls.setdefault(part.index, {"id": part.id, "type": "function", "function": function})
                call["function"]["arguments"] += part.function.arguments
    messages.append({"role": "assistant", "content": text} | ({"tool_calls": [*calls.values()]} if calls else {}))
    if not calls:
        break
    for call in calls.values():
        command = json.loads(call["function"]["arguments"])["command"]
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
        result = f"exit code {done.returncode}\n{done.stdout}{done.stderr}"[:20_000]
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
"""

STEPS, WINDOW, MANY, FACTS = 200, 32_768, 2_000, 100_000  # of a run; of a long one in tokens, its steps; of a journal
LAUNCHES, RUNS, FLOODS = 20, 3, 3  # so many runs of each
CHUNKS = 20_000  # of a stream
FLOOD = "yes 'a line of the two hundred megabytes' | head -c 200000000"
USAGE = {
    "prompt_tokens": 1_000,
    "completion_tokens": 30,
    "total_tokens": 1_030,
}  # counting is not the server's job here
SUMMARY = "The user wants the modules checked; the ones so far passed, and what comes next stands in plan.txt. " * 17


@dataclass(frozen=True)
class Run:
    """What was seen of a process from its start to its end."""

    launch: float  # seconds from its start to its first request
    steps: list[float]  # seconds from each request to the next
    tokens: float  # by which a request is longer than the one before
    memory: float  # MB of it at its peak


@dataclass(frozen=True)
class Seen:
    """What was seen of a request of a long session."""

    summary: bool  # whether it asks for one
    size: int  # characters of it
    known: int  # characters of the messages with which it begins like the one before
    memory: float  # MB of the agent
    arrived: float  # seconds
    answered: float


@dataclass(frozen=True)
class Row:
    """A figure of the agent, what it is held against, and the bound of their ratio."""

    what: str
    unit: str
    ours: float
    other: float
    bound: float = 1


def loop(url: str, directory: str) -> list[str]:
    return [sys.executable, "-c", LOOP, url, "go on"]


def agent(url: str, directory: str, *more: str) -> list[str]:
    options = ["--start_dir", f"{directory}/work", "--base_url", url, "--model", "scripted"]
    return [sys.executable, str(AGENT), *options, *more, "go on"]


def play(program: Callable, directory: str, answer: Callable[[Request, int], Reply]) -> tuple[float, float]:
    """Runs a program whose model is `answer`, made of a request and the program's process id, to its end in
    directory/work. Gives back when it began, in seconds, and its peak memory in MB."""
    os.makedirs(f"{directory}/work", exist_ok=True)
    environment = {k: v for k, v in os.environ.items() if not re.match("OPENAI_|.*_PROXY$", k.upper())}
    environment |= {"TINYAGENT_HOME": f"{directory}/home", "NO_PROXY": "127.0.0.1"}
    # Tokens are estimated: there is no vocabulary, and fetching one ends at a port where nobody listens.
    environment |= {"TIKTOKEN_CACHE_DIR": f"{directory}/none", "HTTPS_PROXY": "http://127.0.0.1:9"}
    script = [lambda request: answer(request, process.pid)] * 2 * MANY
    with Server(*script, check=False) as server, open(f"{directory}/log", "w+b") as log:
        command, streams = program(server.url, directory), {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        began = time.perf_counter()
        process = subprocess.Popen(command, env=environment, stderr=log, **streams)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode or server.breaches:
            log.seek(0)
            told = "\n".join([log.read().decode()[-2000:], *server.breaches])
            sys.exit(f"{command[:2]} ended with {process.returncode}:\n{told}")
    return began, used.ru_maxrss / (1_000_000 if sys.platform == "darwin" else 1_000_000 / 1024)


def measure(program: Callable, *commands: str) -> Run:
    """Runs a program whose model calls the shell with these commands, one a step, and then is done."""
    arrived, sizes = [], []

    def answer(request, _):
        arrived.append(time.perf_counter())
        sizes.append(int(request.headers["content-length"]))
        request.body["messages"].clear()  # what this process has at a fork counts as the peak of the child
        if len(arrived) > len(commands):
            return say("Done.", usage=USAGE)
        return calls(("run_shell_command", {"command": commands[len(arrived) - 1]}), text="I run it.", usage=USAGE)

    with tempfile.TemporaryDirectory() as directory:
        began, memory = play(program, directory, answer)
    steps = [after - before for before, after in zip(arrived, arrived[1:], strict=False)]
    return Run(arrived[0] - began, steps, (sizes[-1] - sizes[0]) / 4 / max(len(steps), 1), memory)


def best(runs: list[Run], figure: Callable[[Run], float]) -> float:
    return min(map(figure, runs))


def step_at(number: int) -> Callable[[Run], float]:
    """Milliseconds of a step when there have been so many: the median of the twenty before."""
    return lambda run: 1000 * median(run.steps[number - 20 : number])


@cache
def both(runs: int, *commands: str) -> tuple[list[Run], list[Run]]:
    """So many runs of the agent and of the loop, in turns, after one of each that compiles what is imported."""
    if runs > 1:
        both(1)
    pairs = [(measure(agent, *commands), measure(loop, *commands)) for _ in range(runs)]
    return [ours for ours, _ in pairs], [bare for _, bare in pairs]


def compared(what: str, unit: str, runs: tuple, figure: Callable[[Run], float], bound: float) -> Row:
    return Row(what, unit, *(best(some, figure) for some in runs), bound)


def launch() -> Iterator[Row]:
    yield compared("launch to the first request", "ms", both(LAUNCHES), lambda run: 1000 * run.launch, 1.15)


def steps() -> Iterator[Row]:
    runs = both(RUNS, *[f"echo hello {step}" for step in range(STEPS)])
    yield compared("a tool step at 50 steps", "ms", runs, step_at(50), 2)
    yield compared(f"a tool step at {STEPS} steps", "ms", runs, step_at(STEPS), 2)
    yield compared("tokens added by a step", "", runs, lambda run: run.tokens, 1.1)
    yield compared("peak memory", "MB", runs, lambda run: run.memory, 1.25)


def flood() -> Iterator[Row]:
    floods, (_, dry) = both(FLOODS, FLOOD), both(RUNS, *[f"echo hello {step}" for step in range(STEPS)])
    yield compared("peak memory while 200 MB are printed", "MB", (floods[0], dry), lambda run: run.memory, 1.25)
    yield compared("that step", "ms", floods, lambda run: 1000 * run.steps[0], 1)


def resident(pid: int) -> float:
    """MB of memory that a process has now."""
    if os.path.exists("/proc/self/statm"):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1_000_000
    return int(subprocess.check_output(["ps", "-o", "rss=", "-p", str(pid)])) * 1024 / 1_000_000


def call(number: int) -> tuple[str, dict]:
    """What the model calls in a step, a command or every third time a part of a file: never twice the same."""
    if number % 3 == 0:
        return "read_from_file", {"path": "log.txt", "first_line": number, "line_count": 6}
    command = f"printf 'module_{number}.py: line %s of {number * 7919 % 9973:04} passed\\n' {{{number}..{number + 6}}}"
    return "run_shell_command", {"command": command}


def seen_of_long_session() -> list[Seen]:
    """Runs the agent for one turn of many steps, in a context window that they fill again and again."""
    seen, before = [], []

    def answer(request, pid):
        arrived, messages = time.perf_counter(), request.body["messages"]
        summary = bool(seen) and messages[-1]["role"] == "user"
        texts = [json.dumps(part) for part in (request.body["tools"], *messages)]
        size, known = sum(map(len, texts)), sum(map(len, texts[: common(before, texts)]))
        before[:] = texts
        messages.clear()
        number = sum(not one.summary for one in seen)
        usage = {"prompt_tokens": size // 4, "completion_tokens": 500 if summary else 50}
        reply = calls(call(number), text=f"I check module {number}.", ids=[f"call_{number}"], usage=usage)
        if summary or number == MANY:
            reply = say(SUMMARY if summary else "Done.", usage=usage)
        seen.append(Seen(summary, size, known, resident(pid), arrived, time.perf_counter()))
        return reply

    with tempfile.TemporaryDirectory() as directory:
        os.mkdir(f"{directory}/work")
        lines = [f"module_{number}.py: {number * 7919 % 9973:04} checks passed\n" for number in range(MANY + 10)]
        Path(directory, "work", "log.txt").write_text("".join(lines))
        play(lambda *where: agent(*where, "--context", str(WINDOW)), directory, answer)
    return seen


def waits(seen: list[Seen]) -> list[float]:
    """Milliseconds from each answer to the next request."""
    return [1000 * (after.arrived - before.answered) for before, after in zip(seen, seen[1:], strict=False)]


def session() -> Iterator[Row]:
    runs = [seen_of_long_session() for _ in range(RUNS)]
    seen, times = runs[0], [min(same) for same in zip(*map(waits, runs), strict=False)]  # the runs are alike
    cuts = [place for place, one in enumerate(seen) if one.summary]
    plain = [passed for place, passed in enumerate(times) if not {place, place + 1} & {*cuts}]
    last, first, full = map(median, (plain[-100:], plain[20:120], plain[cuts[0] : cuts[0] + 100]))
    yield Row(f"a step at {MANY:,}, against the first 120", "ms", last, first, 1.2)  # whose requests are half as long
    yield Row("the same, against the first full window", "ms", last, full, 1.2)
    early, late = ([one.memory for one in part] for part in (seen[cuts[0] : cuts[1]], seen[-MANY // 4 :]))
    yield Row("peak memory, against the first summary", "MB", max(late), max(early), 1.05)
    share = sum(one.known for one in seen) / sum(one.size for one in seen)
    yield Row("of the requests, not in a cache", "%", 100 * (1 - share), 5)
    both_sides = [times[cut - 1] + times[cut] for cut in cuts]  # one of them a step with its tool
    yield Row(f"a summary without the model ({len(cuts)})", "ms", median(both_sides) - median(plain), 50)


def facts(name: str, directory: str) -> Iterator[tinyagent.Event]:
    """What a journal of many turns holds, twenty steps each; every 500 steps the older half is summarised."""
    yield tinyagent.Opened(name, directory, "scripted", "http://127.0.0.1/v1", tinyagent.SYSTEM_PROMPT)
    usage = {"prompt_tokens": 50_000, "completion_tokens": 50, "cached_tokens": 49_000}
    for number in range(FACTS):
        if number % 20 == 0:
            yield tinyagent.UserSaid(f"Check modules {number} to {number + 19}, and mend what does not pass.")
        (tool, arguments), id, kind = call(number), f"call_{number}", "read" if number % 3 == 0 else "execute"
        asked = {"id": id, "type": "function", "function": {"name": tool, "arguments": json.dumps(arguments)}}
        message = {"role": "assistant", "content": f"I check module {number}.", "tool_calls": [asked]}
        yield tinyagent.ModelReplied(message, usage, {})
        yield tinyagent.ToolCalled(id, kind, f"Checking {arguments}")
        yield tinyagent.ToolReturned(id, f"exit code 0\n{f'module_{number}.py: line {id} passed' * 7}", False)
        if number % 20 == 19:
            yield tinyagent.ModelReplied({"role": "assistant", "content": "They pass."}, usage, {})
            yield tinyagent.Result("done", 0, "They pass.", 21, usage, name, usage)
        if number % 500 == 499 and number > 500:  # 500 steps are 1,050 messages
            yield tinyagent.Compacted(1_050, SUMMARY, tinyagent.SYSTEM_PROMPT)


def journal() -> Iterator[Row]:
    """A session of many days, resumed."""
    arrived, launches, readings = [], [], []

    def answer(request, _):
        arrived.append(time.perf_counter())
        request.body["messages"].clear()
        return say("Done.", usage=USAGE)

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "home", "bench", "sessions", "long.jsonl")
        path.parent.mkdir(parents=True)
        lines = (fact.to_json() + "\n" for fact in islice(facts(path.stem, f"{directory}/work"), FACTS))
        path.write_text("".join(lines), encoding="utf-8")
        for _ in range(RUNS):
            began = time.perf_counter()
            tinyagent.Session(path)
            readings.append(time.perf_counter() - began)
            began, _ = play(lambda *where: agent(*where, "--resume", path.stem), directory, answer)
            launches.append(arrived[-1] - began)
    yield Row(f"a journal of {FACTS:,} facts, resumed", "s", min(launches), 3)
    yield Row("of this, the journal alone", "s", min(readings), 3)


def done(work: Iterator[str]) -> str:
    """What a tool gives back, when it is let do all that it is about to do."""
    try:
        while True:
            next(work)
    except StopIteration as end:
        return end.value


def fastest(function: Callable, *arguments, runs: int = 40) -> float:
    """Milliseconds of a call: the median of so many."""
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        function(*arguments)
        times.append(1000 * (time.perf_counter() - began))
    return median(times)


def tools() -> Iterator[Row]:
    """The tools by themselves, and snapshots of many files."""
    with tempfile.TemporaryDirectory() as directory:
        work, state = Path(directory, "work"), Path(directory, "home", "work")
        work.mkdir()
        space = tinyagent.Workspace(work, state / "output", 24_000, "")
        bare = fastest(lambda: subprocess.run(["bash", "-c", "echo hello"], capture_output=True))
        command = fastest(lambda: done(space.run_shell_command("echo hello")))
        yield Row("a command, more than subprocess.run", "ms", command - bare, 3)
        if sys.platform == "linux":
            sandbox = tinyagent.Sandbox("on", work.resolve(), Path(directory, "home"))
            space.sandbox, space.output = sandbox, sandbox.private / "output"
            confined = fastest(lambda: sandbox.run(done, space.run_shell_command("echo hello")))
            yield Row("the same, in the sandbox", "ms", confined - bare, 10)
            space.sandbox = tinyagent.Sandbox()
        text = "".join(f"line {number} of a file of a megabyte\n" for number in range(27_000))
        yield Row("writing a file of 1 MB", "ms", fastest(lambda: done(space.write_to_file("file", text))), 20)
        yield Row("reading it", "ms", fastest(space.read_from_file, "file", 20_000), 20)
        ends = cycle([("line 13000 of", "LINE 13000 of"), ("LINE 13000 of", "line 13000 of")])
        yield Row("editing it", "ms", fastest(lambda: done(space.edit_file("file", *next(ends)))), 20)
        for number in range(20_000):
            folder = work / f"folder{number % 200}"
            folder.mkdir(exist_ok=True)
            (folder / f"file{number}").write_text(f"{number}\n" * 40)
        snapshots = tinyagent.Snapshots(work.resolve(), state, "bench")
        snapshots.take(60)
        yield Row("a snapshot of 20,000 files unchanged", "ms", fastest(snapshots.take, 60, runs=7), 150)


def on_terminal(command: list[str], *keys: tuple[str, str]) -> list[float]:
    """Runs a program in a terminal: types each text when its mark has been printed. Gives back the seconds from the
    start, and from each text, to the next mark."""
    pid, terminal = pty.fork()
    began = time.perf_counter()
    if not pid:
        os.execvp(command[0], command)
    took, printed = [], b""
    for mark, text in keys:
        while mark.encode() not in printed:
            printed += os.read(terminal, 65536)
        took.append(time.perf_counter() - began)
        os.write(terminal, text.encode())
        began, printed = time.perf_counter(), b""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(terminal)
    return took


def terminal() -> Iterator[Row]:
    """The first screen; a stream that comes as fast as it can; keys that are typed while one comes."""
    parts = [event(chunk({"content": f"word{n} " + "\n" * (n % 12 == 0)})) for n in range(CHUNKS)]
    flood = raw(b"".join(parts), event(chunk({"content": "the last\n"}, "stop")))
    trickle = raw(*[part for n in range(2_000) for part in (parts[n], Pause(0.001))], HANG)
    with tempfile.TemporaryDirectory() as directory, Server(*[flood] * 99, check=False) as server:
        os.environ["TINYAGENT_HOME"] = f"{directory}/home"
        os.mkdir(f"{directory}/work")
        command = agent(server.url, directory)[:-1]
        first = min(on_terminal(command, ("> ", ""))[0] for _ in range(LAUNCHES))
        yield Row("first screen of a conversation, at most", "ms", first * 1e3, 150)
        ours = min(on_terminal(command, ("> ", "go\r"), ("the last", ""))[1] for _ in range(FLOODS))
        bare = min(on_terminal(loop(server.url, directory), ("the last", ""))[0] for _ in range(FLOODS))
        yield Row(f"{CHUNKS:,} chunks shown, against a second for 5,000", "s", ours, CHUNKS / 5_000)
        yield Row("the same, against the loop with its launch", "s", ours, bare, 1.5)
    with tempfile.TemporaryDirectory() as directory, Server(*[trickle] * 9, check=False) as server:
        os.mkdir(f"{directory}/work")
        keys = [("> ", "go\r"), ("word20 ", "x"), ("> x", "y"), ("> xy", "z"), ("> xyz", "")]
        slowest = max(on_terminal(agent(server.url, directory)[:-1], *keys)[2:])
        yield Row("a typed key is shown within, at most", "ms", slowest * 1e3, 150)


GROUPS = {group.__name__: group for group in (launch, steps, flood, session, journal, tools, terminal)}


def main() -> int:
    if unknown := {*sys.argv[1:]} - {*GROUPS}:
        sys.exit(f"there is no group {', '.join(unknown)}; the groups are: {', '.join(GROUPS)}")
    print(f"{'figure':40}{'tinyagent':>13}{'against':>13}{'ratio':>8}{'bound':>8}  holds")
    failed = 0
    for row in (row for name in sys.argv[1:] or GROUPS for row in GROUPS[name]()):
        measured = "".join(f"{f'{value:,.1f} {row.unit:2}':>13}" for value in (row.ours, row.other))
        held = row.ours <= row.bound * row.other
        failed += not held
        told = f"{row.what:40}{measured}{row.ours / row.other:8.2f}{row.bound:8.2f}  {'yes' if held else 'no'}"
        print(told, flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
