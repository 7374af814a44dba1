"""The regression cases: tasks that an agent solves with a real model, each with its files, a check and a solution.

    python tests/cases.py --base_url http://127.0.0.1:8080/v1 --model NAME [-j N] [CASE...]
    python tests/cases.py --agent 'other-agent --directory {dir} {task}'     another agent, the same cases

A case is a directory in tests/cases: task.txt is what the user says, start/ the working directory, which prepare.sh
completes; check.sh exits with 0 if it is solved, else says why not; solution/solve.sh solves it. With first.txt a run
of few steps comes before, and task.txt goes on with its session. The agent runs commands as you.
"""

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CASES = {path.parent.name: path.parent for path in sorted(HERE.glob("cases/*/task.txt"))}
GRACE, FIRST_STEPS, SCRIPT = 5, 4, 60  # seconds an agent may be late; steps of first.txt; seconds of a script of a case
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
APART = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "PYTHONDONTWRITEBYTECODE": "1"}
FIGURES = ("steps", "tokens_in", "cached", "tokens_out", "seconds")
ROW = "{:<12} {:<6} {:>5} {:>11} {:>13} {:>9} {:>8} {:>4}  {}"
stopping = threading.Event()  # after Ctrl-C


@dataclass
class Outcome:
    """What became of a case. Steps and tokens are None where nobody tells them."""

    case: str
    solved: bool = False
    why: str = ""  # it is not solved
    steps: int | None = None
    tokens_in: int | None = None
    cached: int | None = None
    tokens_out: int | None = None
    seconds: float = 0.0
    exit_code: int | None = None


def end(process: subprocess.Popen):
    """Ends what is left of a process and its group: asks, then kills."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(GRACE)


class Copy:
    """A fresh copy of a case in a folder of its own, and what runs in it."""

    def __init__(self, name: str, folder: Path):
        self.case, self.folder, self.work, self.answer = CASES[name], folder, folder / "work", folder / "answer.txt"
        self.processes: list[subprocess.Popen] = []
        texts = (self.case / name for name in ("first.txt", "task.txt"))
        self.first, self.task = (path.read_text().strip() if path.exists() else "" for path in texts)
        shutil.copytree(self.case / "start", self.work)
        self.answer.touch()
        if (self.case / "prepare.sh").exists():
            self.script("prepare.sh")

    def run(self, command: list[str], seconds: float, environment: dict) -> tuple[int, str]:
        """Runs it in the directory, so long; gives back exit code and standard output. Files take what it prints, so
        that nothing that it leaves behind keeps us waiting."""
        out, self.errors = (self.folder / f"{len(self.processes)}.{kind}" for kind in ("out", "err"))
        with open(out, "wb") as stdout, open(self.errors, "wb") as stderr, open(os.devnull) as stdin:
            pipes = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
            process = subprocess.Popen(command, cwd=self.work, env=environment, start_new_session=True, **pipes)
        self.processes.append(process)
        until = time.monotonic() + seconds
        while process.poll() is None:
            if stopping.wait(0.02) or time.monotonic() > until:
                end(process)
        return process.returncode, out.read_text(encoding="utf-8", errors="replace")

    def script(self, name: str) -> tuple[int, str]:
        """Runs a script of the case, where neither the user's settings nor old bytecode matter."""
        for cache in [*self.work.rglob("__pycache__")]:
            shutil.rmtree(cache, ignore_errors=True)
        return self.run(["bash", str(self.case / name), str(self.answer)], SCRIPT, ENVIRONMENT | APART)

    def check(self) -> str:
        """Why the case is not solved, in a line; "" if it is."""
        code, said = self.script("check.sh")
        return "" if code == 0 else (said.strip().splitlines() or [f"check.sh: exit code {code}"])[-1]


def run_other(copy: Copy, options: argparse.Namespace, outcome: Outcome) -> None:
    """Has another agent do the task: its standard output is the answer."""
    parts = [part.replace("{dir}", str(copy.work)) for part in shlex.split(options.agent)]
    command = [part.replace("{task}", copy.task) for part in parts]  # last: what is in it stays as it is
    outcome.exit_code, said = copy.run(command, options.seconds + GRACE, ENVIRONMENT)
    copy.answer.write_text(said, encoding="utf-8")


def run_tinyagent(copy: Copy, options: argparse.Namespace, outcome: Outcome) -> str:
    """Has tinyagent do the task, in one run or two. Gives back what kept it from an answer, if something did."""
    until, environment = time.monotonic() + options.seconds, ENVIRONMENT | {"TINYAGENT_HOME": f"{copy.folder}/home"}
    agent, spent = [sys.executable, f"{HERE.parent}/tinyagent.py", f"--start_dir={copy.work}", "--json"], Counter()
    agent += [f"--{name}={value}" for name in ("model", "base_url") if (value := getattr(options, name))]
    agent += [*shlex.split(options.args), f"--max_steps={options.max_steps}"]
    first = [(copy.first, f"--max_steps={FIRST_STEPS}")] if copy.first else []
    for task, *more in [*first, (copy.task, *["--resume"] * len(first))]:
        left = max(1, int(until - time.monotonic()))
        command = [*agent, *more, f"--max_seconds={left}", task]
        outcome.exit_code, said = copy.run(command, left + GRACE, environment)
        try:
            result = json.loads(said.rstrip("\n").rpartition("\n")[2])
            spent.update({"steps": result["steps"], **result["usage"]})
        except (ValueError, LookupError):
            return f"no result: {copy.errors.read_text(errors='replace').strip() or 'it was killed'}"
        outcome.steps, outcome.tokens_in = spent["steps"], spent["prompt_tokens"]
        outcome.cached, outcome.tokens_out = spent["cached_tokens"], spent["completion_tokens"]
        copy.answer.write_text(result["text"], encoding="utf-8")
    return "" if result["status"] in ("done", "needs_input") else f"{result['status']}: {result['text']}"


def solve(name: str, options: argparse.Namespace, root: Path) -> Outcome:
    """Has the agent do a case, in a folder of its own below the root."""
    outcome, copy, began = Outcome(name), Copy(name, root / name), time.monotonic()
    trouble = (run_other if options.agent else run_tinyagent)(copy, options, outcome)
    outcome.seconds, why = round(time.monotonic() - began, 1), copy.check()
    end(copy.processes[-2])  # what the agent left running
    outcome.solved, outcome.why = not why, " ".join(f"{why} ({trouble[:200]})".split()) if why and trouble else why
    return outcome


def row(case: str, solved: str, known: dict) -> str:
    figures = ("-" if known.get(name) is None else f"{known[name]:,}" for name in (*FIGURES, "exit_code"))
    return ROW.format(case, solved, *figures, known["why"]).rstrip()


def run_all(options: argparse.Namespace, root: Path) -> int:
    """Runs the cases and tells of each as it ends; gives back the exit code."""
    told, names = [], ("case", "solved", "steps", "tokens in", "(cached)", "out", "seconds", "exit", "why not")
    print(end="" if options.json else ROW.format(*names) + "\n", flush=True)
    with ThreadPoolExecutor(max(1, options.j)) as pool:
        try:
            for future in as_completed([pool.submit(solve, name, options, root) for name in options.case]):
                told.append(one := asdict(future.result()))
                solved = "yes" if one["solved"] else "no"
                print(json.dumps(one) if options.json else row(one["case"], solved, one), flush=True)
        except KeyboardInterrupt:
            stopping.set()
            pool.shutdown(cancel_futures=True)
            return 130
    sums = {n: round(sum(v), 1) if (v := [o[n] for o in told if o[n] is not None]) else None for n in FIGURES}
    solved = sum(one["solved"] for one in told)
    total = {"cases": len(told), "solved": solved, **sums, "why": f"see {root}" if solved < len(told) else ""}
    print(json.dumps(total) if options.json else row("total", f"{solved}/{len(told)}", total), flush=True)
    return int(solved < len(told))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("case", nargs="*", help=", ".join(CASES) + "; without one: all")
    parser.add_argument("--model", default="", help="else what tinyagent finds")
    parser.add_argument("--base_url", default="")
    parser.add_argument("--seconds", type=int, default=600, help="time of a case (%(default)s)")
    parser.add_argument("--max_steps", type=int, default=60, help="calls of the model in a case (%(default)s)")
    parser.add_argument("--args", default="", help="more options of tinyagent: --args='--text_calls --context 8192'")
    parser.add_argument("--agent", default="", help="another agent's command line, with {dir} and {task}")
    parser.add_argument("--json", action="store_true", help="a JSON object a line, last the totals")
    parser.add_argument("-j", type=int, default=1, help="how many at once")
    options = parser.parse_args()
    if options.agent and not shutil.which((shlex.split(options.agent) or [""])[0]):
        parser.error("--agent: there is no such command")
    if unknown := [name for name in options.case if name not in CASES]:
        parser.error(f"there is no case {unknown[0]!r}; there are {', '.join(CASES)}")
    options.case = list(dict.fromkeys(options.case or CASES))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    root = Path(tempfile.mkdtemp(prefix="cases-"))
    code = run_all(options, root)
    if code != 1:
        shutil.rmtree(root, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
