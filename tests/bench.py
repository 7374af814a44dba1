"""Speed and memory of the agent against a bare loop: python tests/bench.py

Both run as processes, with the same SDK, shell and scripted server, in turns. Times are taken by the server when a
request arrives; of several runs the best counts, for both. The exit code is 1 when a bound does not hold.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from scripted import Server, calls, say

AGENT = Path(__file__).resolve().parent.parent / "tinyagent.py"
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

STEPS = 200
LAUNCHES, RUNS, FLOODS = 20, 3, 3  # so many runs of each
FLOOD = "yes 'a line of the two hundred megabytes' | head -c 200000000"
USAGE = {
    "prompt_tokens": 1_000,
    "completion_tokens": 30,
    "total_tokens": 1_030,
}  # counting is not the server's job here


@dataclass(frozen=True)
class Run:
    """What was seen of a process from its start to its end."""

    launch: float  # seconds from its start to its first request
    steps: list[float]  # seconds from each request to the next
    tokens: float  # by which a request is longer than the one before
    memory: float  # MB of it at its peak


def loop(url: str, directory: str) -> list[str]:
    return [sys.executable, "-c", LOOP, url, "go on"]


def agent(url: str, directory: str) -> list[str]:
    return [sys.executable, str(AGENT), "--start_dir", directory, "--base_url", url, "--model", "scripted", "go on"]


def measure(program: Callable, *commands: str) -> Run:
    """Runs a program whose model calls the shell with these commands, one a step, and then is done."""
    arrived, sizes = [], []

    def reply(place, request):
        arrived.append(time.perf_counter())
        sizes.append(int(request.headers["content-length"]))
        request.body["messages"].clear()  # what this process has at a fork counts as the peak of the child
        if place == len(commands):
            return say("Done.", usage=USAGE)
        return calls(("run_shell_command", {"command": commands[place]}), text="I run it.", usage=USAGE)

    script = [lambda request, place=place: reply(place, request) for place in range(len(commands) + 1)]
    with Server(*script, check=False) as server, tempfile.TemporaryDirectory() as directory:
        os.mkdir(f"{directory}/work")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("OPENAI_")}
        environment |= {"TINYAGENT_HOME": f"{directory}/home", "NO_PROXY": "127.0.0.1"}
        with open(f"{directory}/log", "w+b") as log:
            streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": log}
            began = time.perf_counter()
            process = subprocess.Popen(program(server.url, f"{directory}/work"), env=environment, **streams)
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode or len(arrived) != len(script):
                log.seek(0)
                sys.exit(f"the {program.__name__} ended with {process.returncode}:\n{log.read().decode()[-2000:]}")
    steps = [after - before for before, after in zip(arrived, arrived[1:], strict=False)]
    memory = used.ru_maxrss / (1_000_000 if sys.platform == "darwin" else 1_000_000 / 1024)
    return Run(arrived[0] - began, steps, (sizes[-1] - sizes[0]) / 4 / max(len(steps), 1), memory)


def best(runs: list[Run], figure: Callable[[Run], float]) -> float:
    return min(map(figure, runs))


def step_at(number: int) -> Callable[[Run], float]:
    """Milliseconds of a step when there have been so many: the median of the twenty before."""
    return lambda run: 1000 * median(run.steps[number - 20 : number])


def both(runs: int, *commands: str) -> tuple[list[Run], list[Run]]:
    """So many runs of the loop and of the agent, in turns."""
    pairs = [(measure(loop, *commands), measure(agent, *commands)) for _ in range(runs)]
    return [bare for bare, _ in pairs], [ours for _, ours in pairs]


def main() -> int:
    both(1)  # compiles what is imported
    launches, runs, floods = both(LAUNCHES), both(RUNS, *["echo hello"] * STEPS), both(FLOODS, FLOOD)
    figures = [  # what, its unit, the runs of loop and agent, the figure of a run, the bound of the ratio
        ("launch to the first request", "ms", launches, lambda run: 1000 * run.launch, 1.15),
        ("a tool step at 50 steps", "ms", runs, step_at(50), 2),
        (f"a tool step at {STEPS} steps", "ms", runs, step_at(STEPS), 2),
        ("tokens added by a step", "", runs, lambda run: run.tokens, 1.1),
        ("peak memory", "MB", runs, lambda run: run.memory, 1.25),
        ("the same while 200 MB are printed", "MB", [runs[0], floods[1]], lambda run: run.memory, 1.25),
        ("that step", "ms", floods, lambda run: 1000 * run.steps[0], 1),
    ]
    print(f"{'figure':36}{'tinyagent':>13}{'bare loop':>13}{'ratio':>8}{'bound':>8}  holds")
    failed = 0
    for what, unit, (loops, agents), figure, bound in figures:
        bare, ours = best(loops, figure), best(agents, figure)
        failed += ours > bound * bare
        measured = "".join(f"{f'{value:,.1f} {unit:2}':>13}" for value in (ours, bare))
        print(f"{what:36}{measured}{ours / bare:8.2f}{bound:8.2f}  {'no' if ours > bound * bare else 'yes'}")
    print(f"The loop itself, while 200 MB are printed: {best(floods[0], lambda run: run.memory):,.0f} MB")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
