"""The regression cases: each can be solved and is not solved yet, and what is told of an agent is what it did."""

import json
import os
import shlex
import signal
import subprocess
import sys

import pytest
from cases import CASES, Copy
from conftest import ROOT, command, wait_for
from scripted import Server, calls, error, say

HELLO = ("write_to_file", {"path": "hello.py", "content": 'print("Hello, world!")\n'})
TIMEOUT = {"path": "settings.ini", "old": "0.0.0.0\ntimeout = 30", "new": "0.0.0.0\ntimeout = 45"}


def counted(into, cached, out):
    return {"prompt_tokens": into, "completion_tokens": out, "prompt_tokens_details": {"cached_tokens": cached}}


def cases(*arguments, server=None):
    """The command line that runs cases."""
    return [sys.executable, str(ROOT / "tests" / "cases.py"), *command(*arguments, server=server)[2:]]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Where the directories of cases are made."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def run(*arguments, server=None):
    """The exit code, and the lines: words of the table, or objects of --json."""
    done = subprocess.run(cases(*arguments, server=server), capture_output=True, text=True, timeout=60)
    return done.returncode, [*map(json.loads if "--json" in arguments else str.split, done.stdout.splitlines())]


@pytest.mark.parametrize("name", CASES)
def test_a_case_is_solved_by_its_solution_and_not_before(name, tmp_path):
    untouched, solved = Copy(name, tmp_path / "untouched"), Copy(name, tmp_path / "solved")
    assert untouched.check() != ""
    assert solved.script("solution/solve.sh")[0] == 0
    assert solved.check() == ""


def test_what_is_told_of_solved_cases_is_what_the_agent_did(tmp_path):
    script = [calls(HELLO, usage=counted(100, 0, 20)), say("Done.", usage=counted(1900, 90, 5))]
    script += [calls(("edit_file", TIMEOUT), usage=counted(7, 0, 1)), say("Done.", usage=counted(8, 0, 1))]
    found = {"command": "grep status=500 app.log | sed 's/.* id=//; s/ .*//' > found.txt"}
    script += [calls(("run_shell_command", found), usage=counted(9, 3, 1)), say("Done.", usage=counted(1, 1, 1))]
    with Server(*script, prefix=False) as server:
        code, (_, *rows, total) = run("hello", "crlf", "needle", server=server)
    assert [[*row[:6], *row[7:]] for row in rows] == [
        ["hello", "yes", "2", "2,000", "90", "25", "0"],
        ["crlf", "yes", "2", "15", "0", "2", "0"],
        ["needle", "yes", "2", "10", "4", "2", "0"],
    ]
    assert (code, total[:6]) == (0, ["total", "3/3", "6", "2,025", "94", "29"])
    assert [*tmp_path.glob("cases-*")] == []


def test_a_case_that_is_not_solved_says_why_not(tmp_path):
    refused = error(401, {"error": {"message": "wrong key"}})
    with Server(say("Done."), refused, prefix=False) as server:
        code, (hello, crlf, total) = run("--json", "hello", "crlf", server=server)
    assert (code, total["cases"], total["solved"]) == (1, 2, 0)
    assert (hello["solved"], hello["why"], hello["exit_code"]) == (False, "there is no hello.py", 0)
    assert crlf["exit_code"] == 5 and "wrong key" in crlf["why"]
    assert total["why"] == f"see {next(tmp_path.glob('cases-*'))}"


def test_a_stopped_session_goes_on_in_a_second_run():
    looks = [calls(("run_shell_command", {"command": f"echo {number}"})) for number in range(4)]
    copied = {"command": f"cp {shlex.quote(str(CASES['resume'] / 'solution'))}/*.py . && echo done > plan.txt"}
    with Server(*looks, calls(("run_shell_command", copied)), say("Done."), prefix=False) as server:
        code, (resume, _) = run("--json", "resume", server=server)
    assert (code, resume["solved"], resume["steps"], resume["exit_code"]) == (0, True, 6, 0)
    sent = [json.dumps(request.body) for request in server.requests]
    assert "echo 3" in sent[-1] and ["You were stopped" in body for body in sent] == [False] * 4 + [True] * 2


def test_another_agent_does_the_same_cases():
    agent = ["sh", "-c", 'cd "$1" && echo \'print("Hello, world!")\' > hello.py', "agent", "{dir}"]
    code, (_, hello, total) = run("--agent", shlex.join(agent), "hello")
    assert (code, hello[:6], hello[7], total[:3]) == (0, ["hello", "yes", *["-"] * 4], "0", ["total", "1/1", "-"])


def test_another_agent_gets_the_task_untouched(tmp_path):
    task = (CASES["fizzbuzz"] / "task.txt").read_text().strip()
    assert all(sign in task for sign in '"`;\n')
    assert run("--agent", "printf '%s {dir}' {task}", "fizzbuzz")[0] == 1
    (answer,) = tmp_path.glob("cases-*/fizzbuzz/answer.txt")
    assert answer.read_text() == f"{task} {answer.parent / 'work'}"


def test_ctrl_c_ends_the_agent(tmp_path):
    agent = f"sh -c 'echo $$ > {tmp_path}/pid; exec sleep 60'"
    with subprocess.Popen(cases("--agent", agent, "hello", "crlf"), stdout=subprocess.DEVNULL) as process:
        pid = int(wait_for(tmp_path / "pid"))
        process.send_signal(signal.SIGINT)
        assert process.wait(15) == 130
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_an_unknown_case_is_wrong_use():
    done = subprocess.run(cases("hello", "nonsense"), capture_output=True, text=True)
    assert done.returncode == 2 and "'nonsense'" in done.stderr and "hello, impossible" in done.stderr
