"""The command line as others see it: what goes to which stream, what is sent, and how it ends."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
from conftest import ROOT, command, wait_for
from scripted import HANG, Server, calls, chunk, error, event, raw, say, tokens

from tinyagent import sessions_of

ECHO = ("run_shell_command", {"command": "echo from-the-shell"})
OVERLOADED = error(503, {"error": {"message": "overloaded, come back"}}, {"Retry-After": "0.01"})


def messages(server, number=-1):
    """The messages of a request without the system's, as pairs of role and content."""
    return [(message["role"], message["content"]) for message in server.requests[number].body["messages"][1:]]


def system(server, number=0):
    return server.requests[number].body["messages"][0]["content"]


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def refused(done):
    """Whether a run ended as bad usage should: one line, exit code 2 and nothing else."""
    return done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1 and len(done.stderr) > 20


# ------------------------------------------------------------------------------------------------- one task, and out


def test_one_shot_prints_the_answer_alone(run, workspace):
    with Server(calls(ECHO, text="Let me look."), say("It works.\nReally.")) as server:
        done = run("look around", "--start_dir", workspace, server=server)
    assert (done.returncode, done.stdout) == (0, "It works.\nReally.\n")
    assert "echo from-the-shell" in done.stderr and "Let me look." in done.stderr
    assert messages(server, 0) == [("user", "look around")]
    assert [role for role, _ in messages(server)] == ["user", "assistant", "tool"]
    assert "from-the-shell" in messages(server)[-1][1]


def test_one_shot_does_not_wait_for_standard_input(start, workspace):
    with Server(say("done")) as server:
        process = start("task", "--start_dir", workspace, server=server, stdin=subprocess.PIPE)
        assert process.wait(20) == 0


def test_a_pipe_shows_what_was_said(run, workspace):
    with Server(say("One."), prefix=False) as server:
        shown = run("--start_dir", workspace, stdin="hello\n/context\n", server=server).stdout
        lines = shown.split("\n")
    assert lines.index("> hello") < lines.index("One.") < lines.index("> /context") < len(lines) - 2


def test_commands_and_files_belong_to_the_start_directory(run, workspace):
    written = ("write_to_file", {"path": "sub/a.txt", "content": "é\n"})
    with Server(calls(written, ("run_shell_command", {"command": "pwd; cat sub/a.txt"})), say("ok")) as server:
        assert run("task", "--start_dir", workspace, server=server).returncode == 0
    assert (workspace / "sub" / "a.txt").read_bytes() == b"\xc3\xa9\n"
    assert str(workspace.resolve()) in messages(server)[-1][1] and "é" in messages(server)[-1][1]


def test_without_a_start_directory_a_new_one_is_made(run, tmp_path):
    with Server(calls(("run_shell_command", {"command": "pwd"})), say("ok")) as server:
        assert run("task", server=server, env={"TMPDIR": str(tmp_path)}).returncode == 0
    (made,) = tmp_path.glob("agent_*")
    assert re.fullmatch(r"agent_\d{8}_\d{6}", made.name)
    assert str(made.resolve()) in messages(server)[-1][1]


@pytest.mark.parametrize("steps", ["--max_steps", "--max-steps"])
def test_options_may_be_written_with_hyphens(run, workspace, steps):
    with Server(*[calls(ECHO)] * 3) as server:
        done = run("task", "--start-dir", workspace, steps, "1", "--base-url", server.url, "--model=scripted")
    assert done.returncode == 4
    assert len(server.requests) == 1 and server.requests[0].body["model"] == "scripted"


def test_arguments_from_a_file(run, workspace, tmp_path):
    (tmp_path / "arguments").write_text(f"--start_dir\n{workspace}\nsay two words\n")
    with Server(say("two words")) as server:
        done = run(f"@{tmp_path / 'arguments'}", server=server)
    assert (done.returncode, done.stdout) == (0, "two words\n")
    assert messages(server) == [("user", "say two words")]


@pytest.mark.parametrize("option", ["--max_steps", "--max-steps"])
def test_an_option_and_its_value_on_one_line_of_a_file(run, workspace, tmp_path, option):
    (tmp_path / "arguments").write_text(f"{option} 3\n")
    with Server(say("no")) as server:
        done = run(f"@{tmp_path / 'arguments'}", "--start_dir", workspace, server=server)
    assert refused(done) and "line of its own" in done.stderr and server.requests == []


def test_a_file_of_arguments_that_names_itself(run, tmp_path):
    (tmp_path / "args").write_text(f"@{tmp_path}/args\n")
    assert refused(run(f"@{tmp_path}/args"))


@pytest.mark.parametrize("name", ["d" * 245, "\u4e2d" * 83], ids=["ASCII", "CJK"])
def test_a_directory_with_a_long_name(run, workspace, name):
    (workspace / name).mkdir()
    with Server(calls(ECHO), say("ok")) as server:
        done = run("task", "--start_dir", workspace / name, server=server)
    assert (done.returncode, done.stdout) == (0, "ok\n")


def test_model_and_server_from_the_environment(run, workspace):
    with Server(say("ok")) as server:
        env = {"OPENAI_BASE_URL": server.url, "OPENAI_MODEL": "from-env", "OPENAI_API_KEY": "sk-1"}
        assert run("task", "--start_dir", workspace, env=env).returncode == 0
    assert server.requests[0].body["model"] == "from-env"
    assert server.requests[0].headers["authorization"] == "Bearer sk-1"


def test_a_blank_is_no_name_of_a_model(run, workspace):
    with Server(say("ok")) as server:
        run("task", "--start_dir", workspace, env={"OPENAI_BASE_URL": server.url, "OPENAI_MODEL": " "})
    assert server.requests[0].body["model"] == "scripted"  # the first that the server names


def test_the_first_request_is_small(run, workspace):
    with Server(say("ok")) as server:
        run("hi", "--start_dir", workspace, server=server)
    body = server.requests[0].body
    assert len(body["tools"]) >= 5
    assert tokens(body["messages"], body["tools"]) <= 850


# ------------------------------------------------------------------------------------------------------ conversation


def test_piped_input_is_a_message_a_line(run, workspace):
    with Server(say("first answer"), say("second answer")) as server:
        done = run("--start_dir", workspace, stdin="one\ntwo", server=server)
    assert done.returncode == 0
    assert "first answer" in done.stdout and "second answer" in done.stdout
    assert messages(server) == [("user", "one"), ("assistant", "first answer"), ("user", "two")]


def test_a_conversation_names_directory_model_and_endpoint(run, workspace):
    with Server(say("ok")) as server:
        done = run("--start_dir", workspace, stdin="hi\n", server=server)
    assert all(name in done.stdout for name in (str(workspace.resolve()), "scripted", server.url))


def test_an_empty_first_line_sends_the_opening_message(run, workspace):
    with Server(say("An empty directory."), say("ok")) as server:
        done = run("--start_dir", workspace, stdin="\ngo on\n", server=server)
    assert done.returncode == 0
    assert "director" in messages(server, 0)[0][1]
    assert messages(server)[1:] == [("assistant", "An empty directory."), ("user", "go on")]


@pytest.mark.parametrize("redirection", ["</dev/null", "<&-"])
def test_nothing_on_standard_input_ends_it_at_once(workspace, redirection):
    with Server() as server:
        shell = ["sh", "-c", f'"$@" {redirection}', "sh", *command("--start_dir", workspace, server=server)]
        done = subprocess.run(shell, capture_output=True, encoding="utf-8", timeout=20)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert server.requests == []


def test_a_command_does_not_take_the_lines_of_the_conversation(run, workspace):
    with Server(calls(("run_shell_command", {"command": "cat"})), say("one"), say("two")) as server:
        assert run("--start_dir", workspace, stdin="first\nsecond\n", server=server).returncode == 0
    assert messages(server)[-1] == ("user", "second")


# --------------------------------------------------------------------------------------------------- how it can end


@pytest.mark.parametrize("text", ["NEED_INPUT: which file?", "I looked.\n\nNEED_INPUT\nWhich file?"])
def test_needs_input(run, workspace, text):
    with Server(say(text)) as server:
        done = run("task", "--start_dir", workspace, server=server)
    assert (done.returncode, done.stdout) == (3, text + "\n")


def test_a_command_changes_nothing_of_how_the_last_turn_of_a_pipe_ended(run, workspace):
    with Server(say("NEED_INPUT: which file?")) as server:
        assert run("--start_dir", workspace, stdin="go\n/cost\n", server=server).returncode == 3


@pytest.mark.parametrize("limit", [["--max_steps", 2], ["--max_tokens", 1000], ["--max_seconds", 3]])
def test_limits(run, workspace, limit):
    nap = calls(("run_shell_command", {"command": "sleep 0.8"}), usage={"prompt_tokens": 400, "completion_tokens": 150})
    with Server(*[nap] * 20) as server:
        done = run("task", "--start_dir", workspace, "--json", *limit, server=server)
    result = lines(done.stdout)[-1]
    assert (done.returncode, result["status"], result["exit_code"]) == (4, "limit", 4)
    assert result["steps"] == len(server.requests) <= 5
    assert limit[0] == "--max_seconds" or len(server.requests) == 2


REFUSALS = {
    401: {"error": {"message": "Incorrect API key provided", "code": "invalid_api_key"}},
    403: {"error": {"message": "This country is not served"}},
    404: {"error": {"message": "The model scripted does not exist", "code": "model_not_found"}},
    400: {"error": {"message": "Unknown thing in messages[1]", "code": None}},
    422: {"detail": [{"type": "extra_forbidden", "msg": "Extra inputs are not permitted"}]},
    429: {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}},
}


@pytest.mark.parametrize("status", REFUSALS)
def test_what_will_never_be_accepted_is_asked_once(run, workspace, status):
    body = REFUSALS[status]
    text = body["error"]["message"] if "error" in body else body["detail"][0]["msg"]
    with Server(*[error(status, body)] * 3) as server:
        done = run("task", "--start_dir", workspace, server=server)
    assert (done.returncode, done.stdout) == (5, "")
    assert text in done.stderr and "Traceback" not in done.stderr
    assert len(server.requests) == 1


def test_the_key_is_never_shown(run, workspace):
    key = "sk-do-not-show-0123456789"
    with Server(calls(("run_shell_command", {"command": "env"})), error(401, f"Wrong key: {key}")) as server:
        done = run("task", "--start_dir", workspace, "--json", server=server, env={"OPENAI_API_KEY": key})
    assert done.returncode == 5
    assert server.requests[0].headers["authorization"] == f"Bearer {key}"
    assert key not in done.stdout + done.stderr + json.dumps(server.requests[1].body)
    assert "Wrong key" in done.stdout


def test_an_address_with_a_password_is_refused_and_not_shown(run, workspace):
    url = "http://user:hunter2@127.0.0.1:1/v1"
    for arguments, env in ((["--base_url", url], {}), ([], {"OPENAI_BASE_URL": url})):
        done = run("task", "--start_dir", workspace, *arguments, "--model", "m", env=env)
        assert refused(done) and "hunter2" not in done.stderr


def test_overload_is_retried_and_told(run, workspace):
    with Server(OVERLOADED, OVERLOADED, say("at last")) as server:
        done = run("task", "--start_dir", workspace, server=server)
    assert (done.returncode, done.stdout) == (0, "at last\n")
    assert "overloaded, come back" in done.stderr
    assert len(server.requests) == 3


def test_overload_without_end_is_unavailable(run, workspace):
    with Server(*[OVERLOADED] * 30) as server:
        done = run("task", "--start_dir", workspace, "--json", server=server)
    result = lines(done.stdout)[-1]
    assert (done.returncode, result["status"], result["exit_code"]) == (75, "unavailable", 75)
    assert "overloaded, come back" in result["text"]
    assert 3 <= len(server.requests) <= 12


def test_nobody_at_the_address_is_unavailable(run, workspace):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
    done = run("task", "--start_dir", workspace, "--base_url", url, "--model", "m", timeout=20)
    assert (done.returncode, done.stdout) == (75, "")
    assert "refused" in done.stderr and "Traceback" not in done.stderr


# -------------------------------------------------------------------------------------------------------- bad usage


@pytest.mark.parametrize(
    "arguments",
    [
        ["task", "--start_dir", "missing"],
        ["task", "--start_dir", "file"],
        ["task", "--start_dir", ""],
        ["task", "--no_such_flag"],
        ["task", "--max_steps", "many"],
        ["task", "more"],
        ["task", "--base_url", "no-url"],
        ["task", "--base_url", "http://"],
        ["task", "--base_url", "http://localhost:99999/v1"],
        ["task", "--base_url", "http://localhost:many/v1"],
        ["task", "--base_url", "http://localhost:0/v1"],
        ["task", "--resume=missing"],
        ["--resume=missing"],
        ["task", "--resume=../../etc/passwd"],
        ["task", "--replay", "missing"],
        ["task", "--replay", "file"],
        ["@missing"],
        [""],
        [" \n"],
    ],
    ids=" ".join,
)
def test_bad_usage_is_one_line_and_nothing_is_sent_or_made(run, tmp_path, monkeypatch, home, arguments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    with Server(say("no")) as server:
        env = {"OPENAI_BASE_URL": server.url, "OPENAI_MODEL": "scripted", "TMPDIR": str(tmp_path)}
        done = run(*arguments, env=env, timeout=10)
    assert refused(done) and "Errno" not in done.stderr, done
    assert server.requests == []
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and list(home.iterdir()) == []


def test_what_is_wrong_is_said_before_that_there_is_no_model(run, workspace):
    for arguments in (["--start_dir", workspace / "missing"], ["--start_dir", workspace, "--resume", "missing"]):
        done = run("task", *arguments)
        assert refused(done) and "missing" in done.stderr and "OPENAI_API_KEY" not in done.stderr


def test_a_key_that_no_header_can_carry(run, workspace):
    with Server() as server:
        for key in ("sk-schl\u00fcssel", "sk two"):
            done = run("task", "--start_dir", workspace, server=server, env={"OPENAI_API_KEY": key})
            assert refused(done) and "OPENAI_API_KEY" in done.stderr and key not in done.stderr
    assert server.requests == []


def test_a_current_directory_that_was_removed(tmp_path):
    with Server() as server:
        line = ["/bin/sh", "-c", 'mkdir gone; cd gone; rmdir ../gone; exec "$@"', "sh", *command("task", server=server)]
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, encoding="utf-8")
    assert refused(done) and "was removed" in done.stderr


def test_an_interrupt_while_modules_load_leaves_no_traceback():
    line = [sys.executable, "-X", "importtime", *command("task")[1:]]
    process = subprocess.Popen(line, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, encoding="utf-8")
    while " argparse" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert "Traceback" not in process.communicate(timeout=20)[1] and process.returncode in (-signal.SIGINT, 130)


def test_a_user_without_a_home(monkeypatch, tmp_path):
    for name in ("HOME", "TINYAGENT_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54_321)
    with pytest.raises(ValueError, match="TINYAGENT_HOME"):
        sessions_of(tmp_path)


def test_how_to_go_on_holds_in_any_directory(workspace):
    with Server(say("Hello."), prefix=False) as server:
        line = [sys.executable, "tinyagent.py", *command("--start_dir", workspace, server=server)[2:]]
        done = subprocess.run(line, cwd=ROOT, input="hello\n", capture_output=True, encoding="utf-8")
    assert f" {ROOT}/tinyagent.py --resume " in done.stdout


def test_a_home_that_cannot_be_used(run, workspace, tmp_path):
    (tmp_path / "file").write_text("")
    with Server(say("fine")) as server:
        done = run("task", "--start_dir", workspace, server=server, env={"TINYAGENT_HOME": str(tmp_path / "file")})
    assert "Traceback" not in done.stderr and str(tmp_path / "file") in done.stderr
    assert (done.returncode, done.stdout) in [(0, "fine\n"), (2, "")]


def listening():
    """The first port of a well-known local server at which somebody answers, if any."""
    for port in (11434, 8080, 1234, 8000):
        with socket.socket() as probe:
            probe.settimeout(0.2)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return port
    return None


@pytest.mark.parametrize("arguments", [["task"], []], ids=["one-shot", "conversation"])
def test_no_model_to_talk_to(run, workspace, arguments):
    if port := listening():
        pytest.skip(f"something listens on port {port} of this machine")
    began = time.monotonic()
    done = run(*arguments, "--start_dir", workspace, stdin="hi\n")
    assert time.monotonic() - began < 1.5
    assert (done.returncode, done.stdout) == (2, "")
    assert "OPENAI_API_KEY" in done.stderr and "--base_url" in done.stderr
    assert re.search(rf"{re.escape(sys.executable)} \S+ --replay \S*tests/sessions/hello\.jsonl", done.stderr)


def test_help(run):
    done = run("--help")
    assert done.returncode == 0 and done.stderr == ""
    assert all(f"--{name}" in done.stdout for name in ("start_dir", "resume", "replay", "max_steps", "json"))


# ------------------------------------------------------------------------------------------------------ JSON lines


def test_json_lines(run, workspace):
    with Server(calls(ECHO, text="I look."), say("It works ✓")) as server:
        done = run("task", "--start_dir", workspace, "--json", server=server)
    events = lines(done.stdout)
    assert done.returncode == 0
    assert all(isinstance(happened["type"], str) for happened in events)
    assert [happened["type"] for happened in events].count("result") == 1
    result = events[-1]
    assert {**result, "usage": None, "total": None, "session": None, "time": None} == {
        "type": "result",
        "status": "done",
        "exit_code": 0,
        "text": "It works ✓",
        "steps": 2,
        "usage": None,
        "total": None,
        "session": None,
        "time": None,
    }
    assert all(isinstance(number, int) and number > 0 for number in result["usage"].values())
    assert re.fullmatch(r"[\w.-]+", result["session"])
    assert "from-the-shell" in done.stdout


def test_json_conversation_has_a_result_for_each_turn(run, workspace):
    with Server(say("one"), say("two")) as server:
        done = run("--start_dir", workspace, "--json", stdin="a\nb\n", server=server)
    results = [happened for happened in lines(done.stdout) if happened["type"] == "result"]
    assert done.returncode == 0
    assert [result["text"] for result in results] == ["one", "two"]
    assert lines(done.stdout)[-1] == results[-1]


def test_the_result_is_the_last_line_also_when_something_runs_on(run, workspace):
    with Server(calls(("run_shell_command", {"command": "sleep 60 &"})), say("ok")) as server:
        done = run("task", "--start_dir", workspace, "--json", server=server)
    assert (done.returncode, lines(done.stdout)[-1]["type"]) == (0, "result")


def test_counts_without_end_are_no_numbers_of_json(run, workspace, home):
    told = b'data: {"choices": [], "usage": {"prompt_tokens": 1e999, "completion_tokens": 1, "cost": 1e999}}\n\n'
    with Server(raw(event(chunk({"content": "ok"}, "stop")), told, b"data: [DONE]\n\n")) as server:
        done = run("task", "--start_dir", workspace, "--json", server=server)
    (journal,) = journals(home)
    assert lines(done.stdout)[-1]["text"] == "ok" and "Infinity" not in done.stdout + journal.read_text()


# ------------------------------------------------------------------------------------------------------- what is kept


@pytest.mark.parametrize("name", ["spec.txt", "plan.txt", "AGENTS.md"])
def test_pinned_files_stand_in_the_system_message(run, workspace, name):
    (workspace / name).write_text("Make a gârden.")
    with Server(say("ok")) as server:
        run("task", "--start_dir", workspace, server=server)
    assert name in system(server) and "Make a gârden." in system(server)


def test_a_huge_pinned_file_is_bounded(run, workspace):
    (workspace / "spec.txt").write_text("START " + "x" * 3_000_000 + " END")
    with Server(say("ok")) as server:
        assert run("task", "--start_dir", workspace, server=server).returncode == 0
    assert len(system(server)) < 200_000 and "START" in system(server)


def test_a_pinned_file_larger_than_the_memory_is_left_out(run, workspace):
    (workspace / "spec.txt").touch()
    os.truncate(workspace / "spec.txt", 200 << 30)
    with Server(say("done")) as server:
        done = run("task", "--start_dir", workspace, server=server)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert "spec.txt is left out" in done.stderr and "Traceback" not in done.stderr


def test_pinned_files_are_read_again_on_resume(run, workspace):
    (workspace / "spec.txt").write_text("Make a garden.")
    with Server(say("ok"), say("ok"), prefix=False) as server:
        run("task", "--start_dir", workspace, server=server)
        (workspace / "spec.txt").write_text("Make a forest.")
        run("go on", "--start_dir", workspace, "--resume", server=server)
    assert "garden" in system(server, 0)
    assert "forest" in system(server, 1) and "garden" not in system(server, 1)


def journals(home):
    return sorted(home.glob("*/sessions/*.jsonl"))


def session_of(done):
    return lines(done.stdout)[-1]["session"]


def test_resume_goes_on_with_the_newest_session(run, workspace, home):
    with Server(calls(ECHO), say("Noted."), say("Seven."), say("Eight.")) as server:
        run("remember 7", "--start_dir", workspace, server=server)
        run("which number?", "--start_dir", workspace, "--resume", server=server)
        done = run("--start_dir", workspace, "--resume", stdin="and then?\n", server=server)
    assert done.returncode == 0 and "Eight." in done.stdout
    said = [(role, text) for role, text in messages(server) if role == "user"]
    assert said == [("user", "remember 7"), ("user", "which number?"), ("user", "and then?")]
    assert len(journals(home)) == 1


def test_resume_by_id(run, workspace, home):
    with Server(say("one"), say("two"), say("three"), prefix=False) as server:
        first = run("first", "--start_dir", workspace, "--json", server=server)
        second = run("second", "--start_dir", workspace, "--json", server=server)
        third = run("third", "--start_dir", workspace, f"--resume={session_of(first)}", "--json", server=server)
    assert session_of(first) != session_of(second)
    assert session_of(third) == session_of(first)
    assert messages(server) == [("user", "first"), ("assistant", "one"), ("user", "third")]
    assert [path.stem for path in journals(home)] == sorted([session_of(first), session_of(second)])


def test_each_directory_has_its_own_newest_session(run, workspace, tmp_path):
    with Server(say("one")) as server:
        run("task", "--start_dir", workspace, server=server)
        assert refused(run("task", "--start_dir", tmp_path, "--resume", server=server))
    assert len(server.requests) == 1


def test_only_the_user_can_read_the_journal(run, workspace, home):
    with Server(say("one")) as server:
        run("task", "--start_dir", workspace, server=server)
    (journal,) = journals(home)
    assert journal.stat().st_mode & 0o777 == 0o600
    assert [d.stat().st_mode & 0o777 for d in (journal.parent, journal.parent.parent)] == [0o700, 0o700]


@pytest.mark.parametrize("task", ["--dry-run is-it so?", "--force does not work"])
def test_the_task_is_taken_as_it_is(run, workspace, task):
    with Server(say("one"), prefix=False) as server:
        model = {"OPENAI_BASE_URL": server.url, "OPENAI_MODEL": "scripted"}
        run("--start-dir", workspace, "--", task, env=model)
    assert messages(server)[-1][1] == task


@pytest.mark.parametrize("where", [">/dev/full", "2>/dev/full", ">/dev/full 2>&1"])
def test_an_output_that_cannot_be_written(workspace, home, where):
    with Server(calls(ECHO), say("one"), prefix=False) as server:
        line = command("task", "--start_dir", workspace, server=server)
        done = subprocess.run(["/bin/sh", "-c", f'"$@" {where}', "sh", *line], capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    for journal in journals(home):
        assert json.loads(journal.read_text().splitlines()[-1])["type"] == "result"


TORN = [b'{"type": "user_said", "te', b'"caf\xc3', b"\0\0\0\0", b"{}\nnull\n[]\n5\n"]


def test_a_torn_last_line_is_survived(run, workspace, home):
    answers = [say(f"answer {number}") for number in range(len(TORN) + 1)]
    with Server(*answers) as server:
        run("task 0", "--start_dir", workspace, server=server)
        (journal,) = journals(home)
        for number, torn in enumerate(TORN, 1):
            journal.write_bytes(journal.read_bytes() + torn)
            done = run(f"task {number}", "--start_dir", workspace, "--resume", server=server)
            assert (done.returncode, done.stdout) == (0, f"answer {number}\n")
            assert "damaged" in done.stderr and "Traceback" not in done.stderr
    said = [text for role, text in messages(server) if role == "user"]
    assert said == [f"task {number}" for number in range(len(TORN) + 1)]


def test_a_call_that_was_under_way_is_not_run_again(start, run, workspace, home):
    sleeping = calls(("run_shell_command", {"command": "echo x >> ran; exec sleep 60"}), ECHO)
    with Server(sleeping, say("I see.")) as server:
        process = start("task", "--start_dir", workspace, server=server)
        wait_for(workspace / "ran")
        process.kill()
        process.wait()
        done = run("go on", "--start_dir", workspace, "--resume", server=server)
    assert (done.returncode, done.stdout) == (0, "I see.\n")
    assert (workspace / "ran").read_text() == "x\n"
    assert [role for role, _ in messages(server)] == ["user", "assistant", "tool", "tool", "user"]
    assert "interrupted" in messages(server)[2][1].lower() and "from-the-shell" not in messages(server)[3][1]


# ----------------------------------------------------------------------------------------- terminals, pipes, signals


def test_an_ascii_locale(run, workspace):
    env = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    with Server(calls(("run_shell_command", {"command": "echo é"})), say("✓ é 😀 done")) as server:
        done = run("task", "--start_dir", workspace, server=server, env=env)
    assert (done.returncode, done.stdout) == (0, "? ? ? done\n")
    assert "Traceback" not in done.stderr


def test_input_that_is_not_utf_8(workspace):
    with Server(say("ok")) as server:
        arguments = command("--start_dir", workspace, server=server)
        done = subprocess.run(arguments, input=b"caf\xe9 \xff\n", capture_output=True, timeout=20)
    assert done.returncode == 0 and b"Traceback" not in done.stderr
    assert messages(server)[0][1].startswith("caf")


@pytest.mark.parametrize("more", [["task"], ["task", "--json"], []], ids=["one-shot", "json", "conversation"])
def test_standard_output_closed_early(workspace, more):
    with Server(say("a line\n" * 30_000, pieces=40), say("two")) as server:
        arguments = command(*more, "--start_dir", workspace, server=server)
        shell = ["sh", "-c", 'printf "one\\ntwo\\n" | "$@" | head -1', "sh", *arguments]
        done = subprocess.run(shell, capture_output=True, encoding="utf-8", timeout=20)
    assert done.stdout.count("\n") == 1
    assert not re.search("Traceback|BrokenPipe|Exception ignored", done.stderr)


@pytest.mark.parametrize("redirection", ["<&-", ">&-", "2>&-", ">/dev/full"])
def test_one_shot_without_one_of_its_streams(workspace, redirection):
    with Server(calls(ECHO, text="I look."), say("It works.")) as server:
        arguments = command("task", "--start_dir", workspace, server=server)
        shell = ["sh", "-c", f'"$@" {redirection}', "sh", *arguments]
        done = subprocess.run(shell, capture_output=True, encoding="utf-8", timeout=20)
    assert done.stdout == ("" if redirection.startswith(">") else "It works.\n")
    assert not re.search("Traceback|Exception ignored", done.stderr)
    assert done.returncode == 0 or "full" in redirection


def test_escape_sequences_do_not_reach_the_terminal(run, workspace):
    evil = "\x1b]52;c;aGk=\x07 \x9b6n \x1b[2Jtext\r\x08"
    command_ = ("run_shell_command", {"command": f"printf '{evil}'"})
    with Server(calls(command_, text=evil), say(evil), error(400, evil), prefix=False) as server:
        done = run("task", "--start_dir", workspace, server=server)
        failed = run("task", "--start_dir", workspace, server=server)
    shown = done.stdout + done.stderr + failed.stdout + failed.stderr
    assert "text" in done.stdout
    assert re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown) == []


SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_while_the_model_is_silent(start, run, workspace, number):
    half = [event(chunk({"role": "assistant", "content": "The answer"})), HANG]
    with Server(raw(*half), say("As I said.")) as server:
        process = start("task", "--start_dir", workspace, "--json", server=server)
        assert "The answer" in read_until(process.stdout, "The answer")
        began = time.monotonic()
        process.send_signal(number)
        output, errors = process.communicate(timeout=10)
        assert time.monotonic() - began < 2
        assert process.returncode == 130 and "Traceback" not in errors
        assert lines(output)[-1]["status"] == "interrupted" and lines(output)[-1]["exit_code"] == 130
        assert run("go on", "--start_dir", workspace, "--resume", server=server).stdout == "As I said.\n"
    assert "task" in messages(server)[0][1] and messages(server)[-1][1].endswith("go on")


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_while_a_command_runs(start, workspace, number):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(15)
        connecting = f"exec 3<>/dev/tcp/127.0.0.1/{listener.getsockname()[1]}; sleep 60; true"
        with Server(calls(("run_shell_command", {"command": connecting})), say("no")) as server:
            process = start("task", "--start_dir", workspace, server=server)
            connection, _ = listener.accept()  # the sleep holds the other end
            began = time.monotonic()
            process.send_signal(number)
            _, errors = process.communicate(timeout=10)
            assert time.monotonic() - began < 2
    with connection:
        connection.settimeout(2)
        assert connection.recv(1) == b""  # nothing is left that holds it
    assert process.returncode == 130 and "Traceback" not in errors
    assert len(server.requests) == 1


def test_ctrl_c_ends_the_turn_and_the_conversation_goes_on(start, workspace):
    half = event(chunk({"role": "assistant", "content": "I begin\n"}))
    with Server(raw(half, HANG), say("Another answer.\n")) as server:
        process = start("--start_dir", workspace, server=server, stdin=subprocess.PIPE)
        process.stdin.write("one\n")
        process.stdin.flush()
        assert "I begin" in read_until(process.stdout, "I begin")
        process.send_signal(signal.SIGINT)
        assert "interrupted" in read_until(process.stdout, "interrupted")
        output, errors = process.communicate("two\n", timeout=10)
    assert process.returncode == 0 and "Another answer." in output and "Traceback" not in errors
    assert len(server.requests) == 2 and messages(server)[-1][1].endswith("two")


def test_an_interrupted_reply_is_not_read_to_its_end(start, workspace):
    with Server(say("line\n" * 400, pieces=400, pause=0.02)) as server:
        process = start("--start_dir", workspace, server=server, stdin=subprocess.PIPE)
        process.stdin.write("one\n")
        process.stdin.flush()
        read_until(process.stdout, "line")
        process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + 3
        while server.connections and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not server.connections and process.poll() is None


def test_a_signal_while_it_waits_to_ask_again(start, workspace):
    with Server(error(503, "busy", {"Retry-After": "60"})) as server:
        process = start("task", "--start_dir", workspace, server=server)
        assert "busy" in read_until(process.stderr, "busy")
        process.terminate()
        assert process.wait(5) == 130


def test_a_signal_while_a_conversation_waits_for_a_line(start, workspace):
    with Server(say("hello")) as server:
        process = start("--start_dir", workspace, server=server, stdin=subprocess.PIPE)
        process.stdin.write("hi\n")
        process.stdin.flush()
        assert "hello" in read_until(process.stdout, "hello")
        time.sleep(0.2)
        process.terminate()
        assert process.wait(5) == 130
        assert "Traceback" not in process.stderr.read()


def read_until(stream, text):
    """The lines of a stream up to one that has this text."""
    read = ""
    for line in iter(stream.readline, ""):
        read += line
        if text in line:
            break
    return read


# -------------------------------------------------------------------------------------------------- nothing is lost

HELLO = ROOT / "tests" / "sessions" / "hello.jsonl"


def test_a_recording_overwrites_nothing(run, workspace):
    (workspace / "spec.txt").write_text("mine")
    done = run("--replay", HELLO, "--start_dir", workspace)
    assert done.returncode == 2 and "not empty" in done.stderr
    assert [(path.name, path.read_text()) for path in workspace.iterdir()] == [("spec.txt", "mine")]


def test_the_recording_is_whole_and_plays(run, workspace):
    done = run("--replay", HELLO, "--start_dir", workspace)
    end = f"\n[10 tool results, all as recorded; the files are in {workspace}]\n"
    assert done.returncode == 0 and done.stdout.endswith(end)
    assert "\n! " not in done.stdout and done.stderr == ""


def test_a_recording_leaves_no_status_on_the_screen(window):
    seen = window(None, "--replay", HELLO)
    assert seen.ended() == 0
    assert "[10 tool results, all as recorded; " in "\n".join(seen.screen) and seen.screen[-1].endswith("]")


def test_each_new_temporary_directory_is_new(start, tmp_path):
    with Server(*[say("ok")] * 4, prefix=False) as server:
        started = [start("task", server=server, env={**os.environ, "TMPDIR": str(tmp_path)}) for _ in range(4)]
        assert [process.wait(20) for process in started] == [0, 0, 0, 0]
    made = [path for path in tmp_path.iterdir() if path.name.startswith("agent_")]
    assert len(made) == 4 and all(path.stat().st_mode & 0o077 == 0 for path in made)


def test_commands_run_where_the_state_cannot_be_written(run, workspace, tmp_path):
    (tmp_path / "file").write_text("")
    with Server(calls(ECHO), say("ok")) as server:
        done = run("task", "--start_dir", workspace, server=server, env={"TINYAGENT_HOME": str(tmp_path / "file")})
    assert done.returncode == 0 and "cannot be written" in done.stderr
    assert server.requests[1].body["messages"][-1]["content"].startswith("exit code 0")


def test_a_task_larger_than_the_window_is_not_summarised_at_every_step(run, workspace):
    with Server(*[calls(ECHO)] * 3, *[say("ok")] * 9, prefix=False) as server:
        done = run("word " * 20_000, "--start_dir", workspace, "--context", "8000", server=server)
    assert done.returncode == 0 and done.stderr.count("summarising") <= 1
    assert len(server.requests) <= 6


def test_a_limit_in_dollars_that_cannot_be_kept_is_told(run, workspace):
    with Server(say("ok")) as server:
        done = run("task", "--start_dir", workspace, "--max_cost", "1", server=server)
    assert done.returncode == 0 and "--price" in done.stderr


WRONG = ["price=nan,1,1", "price=1,2", "api=x", "max_cost=nan", "max_seconds=-1"]
WRONG += [f"stall_seconds={text}" for text in ("5", "0,0", "-1,-1", "nan,1")]


@pytest.mark.parametrize("wrong", WRONG)
def test_numbers_that_are_none_are_bad_usage(run, workspace, wrong):
    done = run("task", "--start_dir", workspace, f"--{wrong}")
    assert refused(done) and f"--{wrong.partition('=')[0]}" in done.stderr
