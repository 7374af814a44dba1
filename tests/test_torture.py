"""Kill -9 at two hundred moments of a turn: nothing was done that the journal does not know of, nothing is done twice,
and the session goes on from where it was killed.

By hand, with a table of where the kills landed: python tests/test_torture.py
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import traceback
from bisect import bisect
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).resolve().parent
sys.path[:0] = [place for place in map(str, (HERE.parent, HERE)) if place not in sys.path]

from scripted import RESET, Pause, Reply, Request, Server, calls, error, say  # noqa: E402

import tinyagent  # noqa: E402

KILLS, AT_ONCE = 200, 12
CONTEXT = 6_000  # tokens, so that a summary is needed in the middle of the turn
UNANSWERED = [getattr(tinyagent, name) for name in ("INTERRUPTED", "NOT_RUN") if hasattr(tinyagent, name)]

# -------------------------------------------------------------------------------------------------------- the script


def shell(number, command="echo {} >> done.log; sleep 0.02"):
    """A call of a command that writes its number down once, and takes a while."""
    return number, ("run_shell_command", {"command": command.format(number)})


def write(number):
    return number, ("write_to_file", {"path": f"made/{number}.txt", "content": f"{number}\n"})


def edit(number):
    return number, ("edit_file", {"path": "notes.txt", "old": "# end", "new": f"{number}\n# end"})


def read(number, path):
    return number, ("read_from_file", {"path": path})


def asked(*numbered, text="I go on with this."):
    """A reply with these calls, which arrives in small pieces; the ids of the calls tell their numbers."""
    reply = calls(*(call for _, call in numbered), ids=[f"call_{number:02}" for number, _ in numbered], text=text)
    return replace(reply, parts=tuple(part for sent in reply.parts for part in (sent, Pause(0.002))))


def spoken(text):
    """A text that takes a tenth of a second to arrive."""
    return say(text, pieces=8, pause=0.012)


LATE, BULKY = "sleep 0.02; echo {} >> done.log", "sleep 0.01; echo {} >> done.log; cat long.txt"
LONG = "It takes a while until this is said, and the kill may come before the end of it. " * 4
BUSY = error(503, {"error": {"message": "The server is overloaded."}}, {"retry-after": "0.2"})
BROKEN = replace(spoken(LONG), parts=(*spoken(LONG).parts[:9], RESET))
SCRIPT = [  # what kind of request it is in the table, and the reply
    ("stream", asked(shell(1), shell(2, LATE), write(3))),
    ("stream", asked(shell(4), edit(5), read(6, "notes.txt"))),
    ("stream", asked(shell(7, BULKY), text=LONG)),
    ("retry wait", BUSY),
    ("stream", asked(shell(8, BULKY), write(9), text=LONG)),
    ("stream", asked(shell(10, BULKY), edit(11), shell(12, LATE), write(13))),
    ("stream", asked(shell(14, BULKY), text=LONG)),
    ("stream", asked(shell(15, BULKY))),
    ("compaction", spoken("The user wants the numbers done in their order. " * 6)),
    ("stream", asked(shell(16), shell(17), shell(18, LATE), edit(19), text=LONG)),
    ("stream", asked(shell(20), write(21), read(22, "nowhere.txt"))),
    ("reset", BROKEN),
    ("stream", asked(edit(23), shell(24), text=LONG)),
    ("stream", spoken("All numbers are done. " + LONG)),
]
RESET_AFTER = 0.07  # seconds after its request at which BROKEN is broken


def understood(server: Server, request: Request) -> Reply:
    """What a model says that calls no tool, to a request for a summary or to the user."""
    if request.body["messages"][-1]["content"].endswith(tinyagent.SUMMARY_PROMPT):
        server.previous = None  # what comes next does not extend it
        return say("The numbers were being done.")
    return say("I see.")


# --------------------------------------------------------------------------------------------------------- the agents

NOWHERE = {"HTTPS_PROXY": "http://127.0.0.1:9"}  # so that nobody fetches a vocabulary


@contextmanager
def farm():
    """Runs the process that agents are forked from; gives the path of its socket."""
    with TemporaryDirectory() as folder:
        path = os.path.join(folder, "farm")
        command = [sys.executable, str(HERE / "torture_agent.py"), path]
        started = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "start_new_session": True}
        with subprocess.Popen(command, env=os.environ | NOWHERE, **started) as process:
            try:
                assert process.stdout.readline() == b"ready\n"
                yield path
            finally:
                os.killpg(process.pid, signal.SIGKILL)  # with all agents


class Process:
    """An agent that is forked at that farm."""

    def __init__(self, farm: str, **given):
        self.line = socket.socket(socket.AF_UNIX)
        self.line.connect(farm)
        self.line.sendall(json.dumps(given).encode() + b"\n")
        self.pid = int(self.line.recv(100))

    def ended(self, seconds=0.0) -> bool:
        """Whether it has ended, or does so within this time."""
        self.line.settimeout(seconds)
        with suppress(TimeoutError, BlockingIOError):
            return self.line.recv(1) == b""
        return False

    def end(self, seconds=30):
        """Comes back when it has ended; one that does not end is killed."""
        ended = self.ended(seconds)
        if not ended:
            self.kill()
        self.line.close()
        assert ended, "it did not end"

    def kill(self):
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


@dataclass
class Trial:
    """One agent's directory, its home and what became of it."""

    farm: str
    folder: Path
    arrived: list[float] = field(default_factory=list)  # when its requests came, by time.monotonic
    killed: float = 0.0  # when it was killed, likewise
    path: Path | None = None  # of the journal, once it is there

    def __post_init__(self):
        self.work, self.home = self.folder / "work", self.folder / "home"
        self.work.mkdir(parents=True)
        (self.work / "notes.txt").write_text("# begin\n# end\n")
        (self.work / "long.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 80)

    def start(self, server, *arguments) -> Process:
        """Starts an agent in this directory."""
        options = ["--start_dir", self.work, "--base_url", server.url, "--model", "scripted", "--context", CONTEXT]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
        environment = kept | NOWHERE | {"TIKTOKEN_CACHE_DIR": str(self.folder), "TINYAGENT_HOME": str(self.home)}
        told = [str(argument) for argument in (*options, *arguments)]
        return Process(self.farm, arguments=told, environment=environment, log=str(self.folder / "log"))

    def script(self):
        return [partial(self.arrive, reply) for _, reply in SCRIPT]

    def arrive(self, reply, _request):
        self.arrived.append(time.monotonic())
        return reply

    def journal(self) -> bytes:
        """The bytes of the session's journal, none while it is not there."""
        self.path = self.path or next(self.home.glob("*/sessions/*.jsonl"), None)
        return self.path.read_bytes() if self.path else b""

    def wait_for_growth(self):
        """Waits until something was written to the journal, or a tenth of a second."""
        size, until = len(self.journal()), time.monotonic() + 0.1
        while (os.path.getsize(self.path) if self.path else 0) == size and time.monotonic() < until:
            time.sleep(0.001)
            self.path or self.journal()

    def plain(self, text: str) -> str:
        """The text without what is another in each trial: directories, the session and the names of outputs."""
        text = text.replace(str(self.work), "WORK").replace(str(self.home), "HOME")
        text = re.sub(r"HOME/work-[0-9a-f]{12}", "HOME", text)
        return re.sub(r"\b\d{8}-\d{6}-([0-9a-f]{6}\.txt|[0-9a-f]{4})\b", "NAME", text)

    def facts(self) -> list[dict]:
        """The facts of the journal in plain words, without their time; a last line that is not whole is none."""
        *lines, _ = self.plain(self.journal().decode()).split("\n")
        facts = [json.loads(line) for line in lines if line]
        return [fact | {"time": 0.0, "base_url": ""} if "base_url" in fact else fact | {"time": 0.0} for fact in facts]

    def effects(self) -> list[int]:
        """The numbers of the calls that had an effect, as often as they had it."""
        done = self.work / "done.log"
        lines = (done.read_text() if done.exists() else "") + (self.work / "notes.txt").read_text()
        made = [path.read_text() for path in self.work.glob("made/*.txt")]
        return [int(line) for line in (lines + "".join(made)).split() if line.isdigit()]

    def files(self) -> dict:
        """All files of the directory, when they were written and what is in them."""
        paths = [path for path in self.work.rglob("*") if path.is_file()]
        return {path: (path.stat().st_mtime_ns, path.stat().st_ino, path.read_bytes()) for path in paths}


def uninterrupted(farm: str, folder: Path) -> tuple[list[dict], list[float]]:
    """The facts of the whole turn, and the seconds from its start to each of them."""
    trial, began = Trial(farm, folder), time.time()
    with Server(*trial.script(), prefix=False) as server:
        trial.start(server, "Do the numbers.").end()
    facts, times = trial.facts(), [json.loads(line)["time"] - began for line in trial.journal().splitlines()]
    assert sorted(trial.effects()) == sorted(set(range(1, 25)) - {6, 22})
    kinds = Counter(fact["type"] for fact in facts)
    assert len(facts) > 40 and kinds["compacted"] == 1 and kinds["tool_called"] == kinds["tool_returned"] == 24
    assert facts[-1]["type"] == "result" and facts[-1]["status"] == "done"
    asked_last = server.requests[[kind for kind, _ in SCRIPT].index("compaction")].body["messages"][-1]["content"]
    assert asked_last.endswith(tinyagent.SUMMARY_PROMPT) and len(server.requests) == len(SCRIPT)
    return facts, times


def moments(times: list[float]) -> list[tuple[int, float]]:
    """When to kill: so many facts are in the journal, and so many seconds have passed since the last of them. Right
    after each fact, and evenly over the run, in which nothing counts for more than a tenth of a second."""
    gaps = [(after - before, min(after - before, 0.1)) for before, after in pairwise([0, *times, times[-1] + 0.01])]
    ends = list(accumulate(counted for _, counted in gaps))
    rest = KILLS - len(gaps)
    chosen = [(facts, 0.0) for facts in range(len(gaps))]
    for at in [ends[-1] * (place + 0.5) / rest for place in range(rest)]:
        facts = bisect(ends, at)
        gap, counted = gaps[facts]
        chosen.append((facts, gap * (1 - (ends[facts] - at) / counted)))
    return chosen


# --------------------------------------------------------------------------------------------------------- the trials


def kill(trial: Trial, process, facts: int, seconds: float):
    """Kills the agent at that moment, with SIGKILL, and waits for a command that it left behind."""
    while trial.journal().count(b"\n") < facts and not process.ended():
        trial.wait_for_growth()
    time.sleep(seconds)
    process.kill()
    trial.killed = time.monotonic()
    process.end()
    last, outputs = trial.facts()[-1:], list(trial.home.glob("*/output/*"))
    kept = trial.journal().count(b"; the whole is in ")  # each names a file, and only a command that runs has another
    if last and last[0]["type"] == "tool_called" and len(outputs) > kept:
        left_behind(trial, int(last[0]["call"].removeprefix("call_")))


def left_behind(trial: Trial, number: int):
    """Waits until the command with that number has ended, at most four seconds: it may not have begun at all."""
    until = time.monotonic() + 4
    while number not in trial.effects() and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.1)


def unsnapped(facts: list[dict]) -> list[dict]:
    """The facts without snapshots, which a busy machine may not take in time."""
    return [fact for fact in facts if fact["type"] != "snapped"]


def where(trial: Trial, facts: list[dict]) -> str:
    """Where in the turn the kill landed, in the words of the table."""
    if not facts or facts[-1]["type"] == "result":
        return "after the end" if facts else "before the session"
    if facts[-1]["type"] == "tool_called":
        return "in a command" if facts[-1]["kind"] == "execute" else "in a file tool"
    kinds = [kind for kind, _ in SCRIPT[: len(trial.arrived)]]
    heard = sum(fact["type"] in ("model_replied", "compacted") for fact in facts)
    if kinds[-1:] == ["reset"]:
        return "in a retry wait" if trial.killed - trial.arrived[-1] > RESET_AFTER else "in a stream"
    open_request = sum(kind in ("stream", "compaction") for kind in kinds) > heard or kinds[-1:] == ["retry wait"]
    return f"in a {kinds[-1]}" if open_request else "between these"


def check_effects(trial: Trial, facts: list[dict]):
    """Whether all that was done is in the journal, and all that is done there was done, once."""
    effects = trial.effects()
    called = {fact["call"] for fact in facts if fact["type"] == "tool_called"}
    returned = {fact["call"] for fact in facts if fact["type"] == "tool_returned"} - {"call_06", "call_22"}  # reading
    done = {f"call_{number:02}" for number in effects}
    assert done <= called, f"done without its call in the journal: {done - called}"
    assert returned <= done, f"not done, though the journal says so: {returned - done}"
    assert len(effects) == len(set(effects)), f"done twice: {effects}"


def open_calls(facts: list[dict]) -> dict[str, bool]:
    """The calls without a result in this journal, and whether they had begun."""
    replies = [fact["message"] for fact in facts if fact["type"] == "model_replied"]
    ids = [call["id"] for call in replies[-1].get("tool_calls", [])] if replies else []
    named = {
        kind: {fact["call"] for fact in facts if fact["type"] == kind} for kind in ("tool_called", "tool_returned")
    }
    return {id: id in named["tool_called"] for id in ids if id not in named["tool_returned"]}


def folded(trial: Trial, facts: list[dict]) -> list[dict]:
    """The messages of the request that these facts lead to."""
    path = trial.folder / "folded.jsonl"
    path.write_text("".join(json.dumps(fact) + "\n" for fact in facts))
    session = tinyagent.Session(path)
    messages = [{"role": "system", "content": session.system}]
    for message in session.messages:
        if message["role"] == messages[-1]["role"] == "user":
            message = {"role": "user", "content": messages.pop()["content"] + "\n\n" + message["content"]}
        messages.append(message)
    return messages


def check_history(trial: Trial, request: Request, facts: list[dict], added: list[dict]):
    """Whether the request is what these facts of the uninterrupted turn, and those that were added, lead to."""
    sent = json.loads(trial.plain(json.dumps(request.body["messages"])))
    before = added[: max(place for place, fact in enumerate(added) if fact["type"] == "model_replied")]
    assert sent == folded(trial, facts + before), "the request is not what the journal leads to"
    texts = {m["tool_call_id"]: m["content"] for m in sent if m["role"] == "tool"}
    for id, began in open_calls(facts).items():
        if id not in texts and any(fact["type"] == "compacted" for fact in before):
            continue  # the summary stands for it
        assert texts.get(id) in UNANSWERED, f"{id} has {texts.get(id)}"
        assert texts[id] == UNANSWERED[0 if began else -1], f"{id}, begun: {began}, has {texts[id]}"


def resume(trial: Trial, server: Server, text: str) -> list[dict]:
    """Says this in the session; gives back the facts that this adds."""
    before = len(trial.facts())
    trial.start(server, "--resume", "--", text).end()
    added = trial.facts()[before:]
    assert added and added[-1].get("status") == "done", (trial.folder / "log").read_text()[-2000:]
    assert not any(fact["type"].startswith("tool_") for fact in added), "a tool was called"
    return added


def check_kill(farm: str, folder: Path, whole: list[dict], facts_then: int, seconds: float) -> str:
    """Kills a turn at that moment and goes on with it, twice; gives back where the kill landed."""
    trial = Trial(farm, folder)
    with Server(*trial.script(), prefix=False) as server:
        kill(trial, trial.start(server, "Do the numbers."), facts_then, seconds)
    facts, files = trial.facts(), trial.files()
    check_effects(trial, facts)
    before, whole = unsnapped(facts), unsnapped(whole)
    assert before == whole[: len(before)], "the journal is not the beginning of the whole one"
    place = where(trial, facts)
    if not facts:
        return place
    server = Server()
    server.script = [partial(understood, server)] * 6
    with server:
        first = resume(trial, server, "How far are you?")
        check_history(trial, server.requests[-1], facts, first)
        again = resume(trial, server, "And now?")  # the server sees that it extends the request before
        check_history(trial, server.requests[-1], facts, first + again)
    assert trial.files() == files, "the resumed turn did something"
    check_effects(trial, facts)
    return place


def check_all(farm: str, folder: Path) -> tuple[Counter, list[str]]:
    """Kills and checks; gives back how many of the kills landed where, and what failed."""
    whole, times = uninterrupted(farm, folder / "without")  # as long as the other names: tokens are counted of it

    def check(number, moment):
        try:
            return check_kill(farm, folder / f"kill{number:03}", whole, *moment), ""
        except Exception:
            return "", f"kill {number}, at {moment}:\n{traceback.format_exc()}"

    with ThreadPoolExecutor(AT_ONCE) as pool:
        checked = list(pool.map(check, range(KILLS), moments(times)))
    return Counter(place for place, _ in checked if place), [fault for _, fault in checked if fault]


def test_a_turn_that_is_killed_at_any_moment_goes_on_and_does_nothing_twice(tmp_path):
    with farm() as socket_path:
        landed, failed = check_all(socket_path, tmp_path)
    assert not failed, f"{len(failed)} of {KILLS} kills:\n" + "\n".join(failed[:3])
    places = ("command", "stream", "retry wait", "file tool", "compaction")
    assert sum(landed[f"in a {place}"] > 0 for place in places) >= 4, landed  # a short one may be missed


if __name__ == "__main__":
    began = time.monotonic()
    with farm() as socket_path, TemporaryDirectory() as base:
        landed, failed = check_all(socket_path, Path(base).resolve())
    print("\n".join(failed[:3]))
    for place, times in landed.most_common():
        print(f"{times:4} kills {place}")
    print(f"{len(failed):4} of {KILLS} kills failed a check ({time.monotonic() - began:.0f} s in all)")
    sys.exit(bool(failed))
