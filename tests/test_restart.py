"""Stopping and going on: what is resumed, by whom and where, what is listed of it, and what is played again."""

import json
import os
import resource
import shutil
import signal
import stat
import subprocess
from pathlib import Path

import pytest
from conftest import result, wait_for
from scripted import HANG, Server, calls, error, raw, response, say, tokens

from tinyagent import SUMMARY_PROMPT, Compacted, Opened, UserSaid, read_journal

SHELL = "run_shell_command"
ECHO = (SHELL, {"command": "echo from-the-shell"})
COUNT = (SHELL, {"command": "seq 1 700"})  # 3 kB
ASLEEP = (SHELL, {"command": "echo $$ > pid; exec sleep 60"})


def users(server, number=-1):
    """What the user said, as a request has it."""
    return [message["content"] for message in server.requests[number].body["messages"] if message["role"] == "user"]


def journals(home):
    return sorted(home.glob("*/sessions/*.jsonl"))


def refused(done):
    """Whether a run ended as one that cannot begin should: one line, exit code 2 and nothing else."""
    return (
        done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
    )


def notices(done):
    """What was noticed in a run with --json."""
    happened = [json.loads(line) for line in done.stdout.splitlines()]
    return [event["text"] for event in happened if event["type"] == "noticed"]


@pytest.fixture
def recorded(run, workspace, home):
    """Holds a conversation with these replies; gives back its journal."""

    def recorded(*script, said="go\n", options=()) -> Path:
        with Server(*script, prefix=False) as server:
            done = run("--start_dir", workspace, *options, stdin=said, server=server)
        assert done.returncode in (0, 4) and "Traceback" not in done.stderr  # 4: a limit
        return max(journals(home), key=os.path.getmtime)

    return recorded


# ------------------------------------------------------------------------------------- another model, another server


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_what_one_server_sealed_is_not_sent_to_another(run, workspace, recorded, api):
    sealed = response("I look.", calls=[ECHO]), response("Nothing there.")
    recorded(*sealed, said="look\n", options=["--api", "responses"])
    here = "--start_dir", workspace, "--resume", "--api", api
    with Server(say("Fine.") if api == "chat" else response("Fine.")) as other:
        assert run("go on", *here, "--base_url", other.url, "--model", "another").stdout == "Fine.\n"
    body, sent = other.requests[0].body, json.dumps(other.requests[0].body)
    assert body["model"] == "another" and "encrypted_content" not in sent.replace("reasoning.encrypted_content", "")
    assert all(text in sent for text in ("look", "I look.", "from-the-shell", "Nothing there.", "go on"))
    assert not any("output" in message for message in body.get("messages", []))


def summing(*script, window=1_000_000):
    """Replies of a server with so large a window that it does not tell; orders of a summary take none of the script."""
    left = iter(script)

    def reply(request):
        if tokens(request.body["messages"], request.body.get("tools", [])) > window:
            return error(400, {"error": {"code": "context_length_exceeded", "message": "too long"}})
        return say("They counted.") if SUMMARY_PROMPT in users_of(request)[-1] else next(left)

    return [reply] * 40


def users_of(request):
    return [message["content"] for message in request.body["messages"] if message["role"] == "user"]


def test_a_smaller_window_is_made_room_in_before_it_goes_on(run, workspace, recorded):
    path = recorded(*[calls(COUNT)] * 9, say("Counted."), said="count\n")
    with Server(*summing(calls(ECHO), say("Fine."), window=6_000), prefix=False) as server:
        resumed = "--resume", path.stem, "--start_dir", workspace, "--context", 6_000
        assert run("go on", *resumed, server=server).stdout == "Fine.\n"
    assert "They counted." in users(server)[0] and users(server)[-1].endswith("go on")
    assert SUMMARY_PROMPT in users(server, 0)[-1]  # room is made first


# ------------------------------------------------------------------------------------------ two agents, one directory


def test_each_of_two_agents_has_its_own_session(run, start, workspace, home):
    with Server(raw(HANG), say("Two."), say("Three."), say("Four."), prefix=False) as server:
        first = start("one", "--start_dir", workspace, server=server)
        server.wait()
        (path,) = journals(home)
        before = path.read_bytes()
        for arguments in (["task"], ["--start_dir", workspace]):
            done = run("--resume", path.stem, *arguments, server=server)
            assert refused(done) and path.stem in done.stderr, done
        assert path.read_bytes() == before
        shown = run("two", "--start_dir", workspace, server=server)
        assert shown.returncode == 0 and shown.stderr.count("at work") == shown.stderr.count(path.stem) == 1
        told = notices(run("three", "--start_dir", workspace, "--json", server=server))
        assert [path.stem in text for text in told] == [True]
        assert len(journals(home)) == 3 and path.read_bytes() == before
        first.kill()
        first.wait()
        done = run("four", "--start_dir", workspace, "--resume", path.stem, "--json", server=server)
    assert done.returncode == 0 and notices(done) == [] and users(server) == ["one\n\nfour"]


def test_a_session_at_work_is_not_taken_to_another_directory(run, start, workspace, home, tmp_path):
    with Server(raw(HANG), say("Two."), prefix=False) as server:
        start("one", "--start_dir", workspace, server=server)
        server.wait()
        for named in (journals(home)[0].stem, workspace, journals(home)[0]):
            done = run("two", "--resume", named, "--start_dir", tmp_path, server=server)
            assert refused(done) and "at work" in done.stderr
    assert len(journals(home)) == 1


# --------------------------------------------------------------------------------------------- another place on disk


def modes(home):
    """The permissions of all that the state has: folders, files."""
    paths = [path for path in home.rglob("*") if not path.is_symlink()]
    kinds = [{stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_dir() == kind} for kind in (True, False)]
    return tuple(kinds)


def test_a_directory_that_is_renamed_again_and_again(run, workspace, home, recorded):
    path, said = recorded(say("0"), said="0\n"), ["0"]
    place, before = workspace.rename(f"{workspace} 1"), path.read_bytes()
    with Server(*[say("ok")] * 4, prefix=False) as server:
        gone = run("go on", "--resume", path.stem, server=server)
        assert refused(gone) and "--start_dir" in gone.stderr and path.read_bytes() == before
        for how in ("id", "directory", "journal", "nothing"):
            newest = max(journals(home), key=os.path.getmtime)
            named = {"id": [path.stem], "directory": [place], "journal": [newest], "nothing": []}[how]
            place = place if how == "nothing" else place.rename(f"{workspace} {how}")
            said.append(f"by {how}")
            assert run(said[-1], "--start_dir", place, "--resume", *named, server=server).returncode == 0
            assert users(server) == said
    assert modes(home) == ({0o700}, {0o600})


@pytest.mark.parametrize("how", ["directory", "journal"])
def test_the_old_name_finds_what_was_added_under_the_new_one(run, workspace, recorded, how):
    named = {"journal": recorded(say("One."), said="one\n"), "directory": workspace}[how]
    new = workspace.rename(f"{workspace} new")
    with Server(say("Two."), say("Three.")) as server:
        run("two", "--start_dir", new, "--resume", named, server=server)
        run("three", "--start_dir", new, "--resume", named, server=server)
    assert users(server) == ["one", "two", "three"]


def test_a_session_that_goes_on_beside_its_directory(run, workspace, recorded, tmp_path):
    """Of what was done there no file is put back here, and what was here before is no change of the session."""
    path = recorded(calls(WRITE), say("One."), said="one\n")
    (tmp_path / "theirs.txt").write_text("theirs\n")
    with Server(calls((SHELL, {"command": "touch new.txt"})), say("Two."), prefix=False) as server:
        orders = "two\n/diff\n/undo\n/undo\n/redo\n/diff\n/undo\n"
        done = run("--resume", path.stem, "--start_dir", tmp_path, stdin=orders, server=server)
    shown = done.stdout.partition("Go on with:")[0]
    assert str(workspace) in shown and "Taken back: two\n1 file removed: new.txt\n" in shown
    assert shown.count("Taken back: one\nNo file was put back.\n") == 2 and "theirs.txt" not in shown
    assert (workspace / "a.txt").exists() and [file.name for file in tmp_path.iterdir()] == ["theirs.txt"]


def test_a_copy_in_another_directory_leaves_the_session_where_it_was(run, workspace, recorded, tmp_path, monkeypatch):
    path = recorded(say("One."), said="here\n")
    with Server(*[say("ok")] * 3, prefix=False) as server:
        run("beside", "--start_dir", tmp_path, "--resume", f"{workspace}/", server=server)
        assert users(server) == ["here", "beside"]
        run("back", "--start_dir", workspace, "--resume", path.stem, server=server)
        monkeypatch.chdir(workspace)
        run("again", "--resume", path.stem, server=server)
    assert users(server) == ["here", "back", "again"]


def test_journals_from_somewhere_else(run, workspace, home, tmp_path, recorded):
    """Two of the same name are two sessions."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        shutil.move(recorded(say(f"I am {name}."), said=f"{name}\n"), tmp_path / name / "notes.jsonl")
        (tmp_path / name / "notes.jsonl").chmod(0o644)
    with Server(say("One."), say("Two."), prefix=False) as server:
        for name in ("a", "b"):
            there = tmp_path / name / "notes.jsonl"
            before = there.read_bytes()
            assert run("go on", "--resume", there, server=server).returncode == 0
            assert users(server) == [name, "go on"] and there.read_bytes() == before
    assert modes(home) == ({0o700}, {0o600})
    assert all(sum(type(fact) is Opened for fact in read_journal(path)) == 2 for path in journals(home))


def test_a_directory_behind_a_link_is_the_same_directory(run, workspace, home, tmp_path):
    (tmp_path / "link").symlink_to(workspace)
    with Server(say("One."), say("Two."), prefix=False) as server:
        run("one", "--start_dir", tmp_path / "link", server=server)
        run("two", "--start_dir", workspace, "--resume", f"{tmp_path}/link", server=server)
    assert users(server) == ["one", "two"] and len(journals(home)) == 1


def test_the_newest_of_a_directory_is_one_in_which_something_was_said(run, workspace, home, recorded):
    path = recorded(say("One."), said="one\n")
    (path.with_name("29990101-000000-0000.jsonl")).touch()  # killed as it began
    (path.with_name("29990101-000000-0001.jsonl")).symlink_to("nothing")
    with Server(say("Two."), say("Three."), prefix=False) as server:
        assert run("two", "--resume", workspace, server=server).returncode == 0
        assert run("three", "--start_dir", workspace, "--resume", server=server).returncode == 0
    assert users(server) == ["one", "two", "three"]


def test_another_agent_at_work_in_the_directory_is_told_of(run, start, workspace, home):
    with Server(raw(HANG), say("Two."), prefix=False) as server:
        start("one", "--start_dir", workspace, server=server)
        server.wait()
        done = run("two", "--start_dir", workspace, server=server)
        assert done.stderr.count("another agent is at work") == 1


def test_a_session_in_which_no_model_replied(run, workspace):
    with Server(error(400, "no"), say("Here."), prefix=False) as server:
        assert run("one", "--start_dir", workspace, server=server).returncode != 0
        done = run("--start_dir", workspace, "--resume", stdin="two\n", server=server)
    assert done.returncode == 0 and "You said last:\none\n" in done.stdout and "Here." in done.stdout
    assert done.stderr == "" and users(server) == ["one\n\ntwo"]


def test_damage_is_told_once(run, workspace, recorded):
    path = recorded(say("One."), say("Two."), said="one\ntwo\n")
    path.write_bytes(path.read_bytes() + b"nonsense\n")
    with Server() as server:
        done = run("--start_dir", workspace, "--resume", stdin="/undo\n/undo\n", server=server)
    assert done.stdout.count("Taken back") == 2 and done.stdout.count("damaged") == 1


# ------------------------------------------------------------------------------------------------------------ the list


def test_the_list_says_how_each_session_ended(run, start, workspace, home, recorded):
    """No model is needed, and a broken journal takes no other with it."""
    ended = {recorded(say("One."), said="first words\n").stem: "done"}
    ended[recorded(calls(ECHO), options=["--max_steps", 1]).stem] = "limit"
    with Server(*[raw(HANG)] * 3, prefix=False) as server:
        for number, (how, word) in enumerate(
            [(signal.SIGINT, "interrupted"), (signal.SIGKILL, "broke off"), (0, "at work")], 1
        ):
            process = start("begin\nand more", "--start_dir", workspace, server=server)
            server.wait(number)
            process.send_signal(how)
            process.wait(10) if how else None
            (made,) = {path.stem for path in journals(home)} - ended.keys()
            ended[made] = word
        (journals(home)[0].with_name("broken.jsonl")).write_text("no journal\n")
        done = run("--sessions", "--start_dir", workspace)
    assert done.returncode == 0 and done.stderr == ""
    lines = {line.split()[0]: line for line in done.stdout.removesuffix("\n").split("\n")}
    assert len(lines) == 6 and "not a session" in lines.pop("broken")
    assert [id for id in ended if ended[id] not in lines[id]] == []
    first, limited, *others = (lines[id] for id in ended)
    assert "1 step " in first and "first" in first and "words" in first and "tokens" in first
    assert "1 step " in limited and all("begin and more" in line for line in others)


def test_a_list_of_nothing_has_no_empty_line(run, workspace):
    done = run("--sessions", "--start_dir", workspace)
    assert (done.returncode, done.stderr) == (0, "") and (done.stdout == "" or done.stdout.strip())


def test_the_list_draws_nothing_on_the_terminal(run, workspace, recorded):
    recorded(say("One."), said="first \x1b[2J\x1b]0;title\x07 words\x9b2J\n")
    shown = run("--sessions", "--start_dir", workspace).stdout
    assert [letter for letter in shown.removesuffix("\n") if not letter.isprintable()] == []


# ---------------------------------------------------------------------------------------------------------- bad input


ODD = {"another program's": b'{"type": "user"}\n{"id": 7}\n', "empty": b"", "not text": b"\0\xff\n" * 9}


@pytest.mark.parametrize("kinds", [[*ODD, "directory", "link"], ["pipe"]], ids=["files", "pipe"])
def test_what_is_no_journal_is_refused_and_left_alone(run, workspace, recorded, kinds):
    good = recorded(say("One."))
    places = {kind: good.with_name(f"odd-{number}.jsonl") for number, kind in enumerate(kinds)}
    make = {"directory": os.mkdir, "pipe": os.mkfifo, "link": lambda path: path.symlink_to(good)}
    for kind, path in places.items():
        make.get(kind, lambda path, kind=kind: path.write_bytes(ODD[kind]))(path)

    def look():
        return [(p.name, p.lstat()[:7], p.lstat().st_mtime_ns) for p in sorted(good.parent.iterdir())]

    before = look(), good.read_bytes()
    for kind, path in places.items():
        by_path = [] if kind == "link" else [["--resume", path], ["--replay", path]]  # a link that is named is followed
        for arguments in (["--resume", path.stem], ["--replay", path.stem], *by_path):
            done = run("task", "--start_dir", workspace, *arguments, "--base_url", "http://127.0.0.1:9", timeout=10)
            assert refused(done), (kind, done)
    listed = run("--sessions", "--start_dir", workspace, timeout=10)
    events = [json.loads(line) for line in run("--sessions", "--start_dir", workspace, "--json").stdout.splitlines()]
    assert [(event["type"], event["text"] + "\n") for event in events] == [("noticed", listed.stdout)]
    assert listed.returncode == 0 and listed.stdout.count("\n") == len(kinds) + 1 and "  done  " in listed.stdout
    assert (look(), good.read_bytes()) == before


NEWER = [
    b'{"type": "thought", "text": "of a newer version", "time": 1.0}',
    b'{"type": "user_said", "text": "glued", "time": 1.0}{"type": "user_said", "text": "too", "time": 1.0}',
    b"\0\0\0\0\0\0\0\0",
    b"[1]",
]


def test_a_journal_of_a_newer_version_with_damage_is_gone_on_with(run, workspace, recorded):
    path = recorded(calls(ECHO), say("One."))
    first, *rest = path.read_bytes().splitlines()
    lines = [first[:-1] + b', "mood": {"good": [1]}}', *NEWER, *rest]
    path.write_bytes(b"\n".join(lines))  # the last without its end
    before = path.read_bytes()
    with Server(say("Two.")) as server:
        done = run("and now?", "--start_dir", workspace, "--resume", path.stem, "--json", server=server)
    assert done.returncode == 0 and [("4 damaged lines" in text) for text in notices(done)] == [True]
    assert users(server) == ["go", "and now?"] and path.read_bytes().startswith(before)


@pytest.mark.parametrize("arguments", [["--sessions", "--start_dir"], ["--replay"]], ids=["list", "replay"])
def test_damage_is_told_where_a_session_is_only_read(run, workspace, recorded, tmp_path, arguments):
    path = recorded(calls(ECHO), say("One."))
    path.write_bytes(path.read_bytes() + b"\n".join(NEWER))
    given = [workspace] if "--sessions" in arguments else [path, "--start_dir", tmp_path]
    done = run(*arguments, *given)
    assert done.returncode == 0 and "damaged" in done.stdout


MESSAGE = {"role": "assistant", "content": "x"}
REPLY, RESULT = {"type": "model_replied", "usage": {}, "faults": {}}, {"type": "result", "status": "done", "text": ""}
SHAPES = {  # facts whose inner parts are of another shape than ours
    "no message": REPLY | {"message": {}},
    "no list of calls": REPLY | {"message": MESSAGE | {"tool_calls": None}},
    "calls of another kind": REPLY | {"message": MESSAGE | {"tool_calls": [{"id": "a"}]}},
    "words for numbers": RESULT | {"exit_code": 0, "steps": 1, "usage": {"prompt_tokens": "many"}, "session": "x"},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_fact_of_another_shape_is_refused_or_left_out(run, workspace, recorded, shape):
    path = recorded(calls(ECHO), say("One."))
    path.write_text(path.read_text() + json.dumps(SHAPES[shape] | {"total": {}, "time": 1.0}) + "\n")
    with Server(say("Two."), prefix=False) as server:
        done = run("and now?", "--start_dir", workspace, "--resume", path.stem, server=server)
    assert refused(done) or done.stdout == "Two.\n"
    listed = run("--sessions", "--start_dir", workspace)
    assert (listed.returncode, listed.stderr) == (0, "")


@pytest.mark.parametrize("room", [500, 4_000])
def test_a_full_disk_does_not_stop_the_work(run, start, workspace, home, room):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    script = [calls((SHELL, {"command": f"echo {number}"}), text="x" * 300) for number in range(5)]
    with Server(*script, say("One."), say("Two."), prefix=False) as server:
        process = start("one", "--start_dir", workspace, server=server, preexec_fn=limit)
        output, errors = process.communicate(timeout=20)
        assert (process.returncode, output) == (0, "One.\n") and errors.count("cannot be written") == 1
        (path,) = journals(home)
        assert path.stat().st_size <= room
        done = run("two", "--start_dir", workspace, "--resume", path.stem, server=server)
    assert (refused(done) and len(server.requests) == 6) if room == 500 else done.stdout == "Two.\n"
    assert room == 500 or (users(server) == ["one", "two"] and "damaged" in done.stderr)


# ------------------------------------------------------------------------------------------------------------- replay


@pytest.fixture
def plays(run, tmp_path_factory, home):
    """Plays a recording in a new directory, and the replay's own journal in another. The recording stays as it is."""

    def plays(path, *options):
        for recording in (path, None):
            recording = recording or max(journals(home), key=os.path.getmtime)
            before, place = (recording.read_bytes(), recording.stat().st_mtime_ns), tmp_path_factory.mktemp("again")
            done = run("--replay", recording, "--start_dir", place, *options)
            assert before == (recording.read_bytes(), recording.stat().st_mtime_ns)
            assert (done.returncode, done.stderr) == (0, ""), done.stdout[-2000:]
        return place, done

    return plays


WRITE = ("write_to_file", {"path": "a.txt", "content": "one\n"})
LONG = (SHELL, {"command": "seq 1 5000; pwd"})
RECORDINGS = {  # name -> replies, what is said, options
    "several turns": ([calls(WRITE, ECHO), say("1"), calls(LONG), say("2"), say("3")], "a\nb\nc\n", []),
    "a small window": (summing(calls(COUNT, COUNT), calls(COUNT), say("1")), "a\n", ["--context", 6000]),
    "compacted": (summing(*[calls(COUNT)] * 9, say("1"), calls(ECHO), say("2")), "a\nb\n", ["--context", 6000]),
    "taken back": (summing(calls(ECHO), say("1"), calls(COUNT), say("2")), "a\n/compact\n/uncompact\nb\n", []),
}


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_session_is_played_again(recorded, plays, home, name):
    script, said, options = RECORDINGS[name]
    path = recorded(*script, said=said, options=options)
    place, done = plays(path, "--json")
    assert json.loads(done.stdout.splitlines()[-1])["status"] == "done"
    facts, again = read_journal(path), read_journal(max(journals(home), key=os.path.getmtime))
    texts = [[fact.text for fact in each if isinstance(fact, UserSaid)] for each in (facts, again)]
    assert texts[0] == texts[1] and again[0].directory == str(place.resolve())
    summaries = [[fact.summary for fact in each if isinstance(fact, Compacted)] for each in (facts, again)]
    assert name != "compacted" or (summaries[0] and summaries[0] == summaries[1])
    assert (place / "a.txt").exists() == (name == "several turns")


def test_a_turn_that_was_taken_back_is_not_played(recorded, plays):
    other = calls(("write_to_file", {"path": "b.txt", "content": "two\n"}))
    path = recorded(calls(WRITE), say("1"), other, say("2"), calls(ECHO), say("3"), said="a\nb\n/undo\nc\n")
    place, done = plays(path)
    assert [made.name for made in place.iterdir()] == ["a.txt"] and "> b\n" not in done.stdout
    assert "[2 tool results, all as recorded; " in done.stdout


def test_what_was_refused_at_the_question_is_not_played(agent, plays):
    script = calls(WRITE, (SHELL, {"command": "touch made"})), say("As you like."), calls(WRITE)
    with Server(*script, prefix=False) as server:
        told = agent(server, ask=True)
        told.approve = lambda _: "never do that"
        assert result(told).status == "done"
        told.approve = None  # nobody is there to be asked
        assert result(told, "again").status == "needs_input"
    place, _ = plays(told.session.path)
    assert list(place.iterdir()) == []


def test_a_hint_during_the_answer_is_played_with_what_came_after_it(agent, plays):
    hints = []

    def late(_):
        hints.append("write it, too")
        return say("One.")

    with Server(late, calls(WRITE), say("Two."), prefix=False) as server:
        told = agent(server)
        told.hints = lambda: [hints.pop() for _ in hints[:]]
        assert result(told).text == "Two."
    place, done = plays(told.session.path)
    assert (place / "a.txt").exists() and "[1 tool result, all as recorded; " in done.stdout
    assert "> write it, too\n" in done.stdout and "Two." in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_what_was_interrupted_is_not_run_again(start, run, workspace, home, plays, number):
    """And a command that outlives its agent keeps nobody from the session."""
    after = (SHELL, {"command": "touch after"})
    with Server(calls(ECHO, ASLEEP, after), calls(ECHO, WRITE), say("Two."), prefix=False) as server:
        process = start("one", "--start_dir", workspace, server=server)
        pid = int(wait_for(workspace / "pid"))
        process.send_signal(number)
        assert process.wait(10) == (130 if number == signal.SIGINT else -9)
        (path,) = journals(home)
        if number == signal.SIGKILL:
            assert "  1 step " in run("--sessions", "--start_dir", workspace).stdout
            told = run("--start_dir", workspace, "--resume", path.stem, server=server).stdout
            assert f"Session {path.stem}. You said last:\none\n" in told
            assert "may or may not have been done:\n" in told and "sleep 60" in told and "touch after" not in told
        done = run("two", "--start_dir", workspace, "--resume", path.stem, server=server)
    if number == signal.SIGKILL:
        os.kill(pid, number)
    assert done.stdout == "Two.\n"
    place, played = plays(path)
    assert sorted(made.name for made in place.iterdir()) == ["a.txt"]
    assert "[3 tool results, all as recorded; " in played.stdout


def test_a_link_to_a_journal_that_is_named_by_its_path_is_followed(run, workspace, recorded, tmp_path):
    (tmp_path / "link.jsonl").symlink_to(recorded(say("One."), said="one\n"))
    with Server(say("Two."), prefix=False) as server:
        assert run("two", "--start_dir", workspace, "--resume", tmp_path / "link.jsonl", server=server).returncode == 0
    assert users(server) == ["one", "two"]
    played = run("--replay", tmp_path / "link.jsonl", "--start_dir", workspace)
    assert played.returncode == 0 and "> two\nTwo.\n" in played.stdout


def test_a_command_of_ones_own_that_was_stopped_is_not_run_again(start, run, workspace, home, tmp_path):
    """And a replay shows what the user said."""
    with Server(say("Hello."), prefix=False) as server:
        process = start("--start_dir", workspace, server=server, stdin=subprocess.PIPE)
        process.stdin.write("!touch made; echo $$ > pid; exec sleep 60\n")
        process.stdin.flush()
        wait_for(workspace / "pid")
        process.send_signal(signal.SIGINT)
        process.communicate("hello\n", timeout=20)
    played = run("--replay", *journals(home), "--start_dir", tmp_path)
    assert "not run again" in played.stdout and not (tmp_path / "made").exists()
    assert "> hello\nHello.\n" in played.stdout


def test_a_result_that_differs_is_told(run, workspace, recorded, tmp_path):
    (workspace / "b.txt").write_text("as it was\n")
    path = recorded(calls(("read_from_file", {"path": "b.txt"}), ECHO), say("Read."))
    shown = run("--replay", path, "--start_dir", tmp_path)
    assert shown.returncode == 1 and "as it was" in shown.stdout
    assert "[2 tool results, 1 not as recorded; " in shown.stdout
    told = run("--replay", path, "--start_dir", tmp_path, "--json")
    last = json.loads(told.stdout.splitlines()[-1])
    assert (told.returncode, last["status"], last["exit_code"]) == (1, "error", 1)
    assert "as it was" in "".join(notices(told))
    (tmp_path / "b.txt").write_text("as it was\n")
    assert run("--replay", path, "--start_dir", tmp_path).returncode == 0


def test_a_replay_keeps_the_key_from_its_commands(run, recorded, tmp_path, home, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789")
    path = recorded(calls((SHELL, {"command": 'echo "[$OPENAI_API_KEY]"'})), say("Done."))
    done = run("--replay", path, "--start_dir", tmp_path)
    assert "[]" in done.stdout and done.returncode == 0
    assert len(journals(home)) == 2 and not any("sk-0123456789" in each.read_text() for each in journals(home))


def test_a_session_that_moved_is_played_again(run, workspace, recorded, plays):
    path = recorded(calls((SHELL, {"command": "pwd"})), say("One."))
    new = workspace.rename(workspace.with_name(f"{workspace.name}-new"))
    with Server(calls((SHELL, {"command": "pwd"})), say("Two."), prefix=False) as server:
        run("two", "--start_dir", new, "--resume", path.stem, server=server)
    plays(max(path.parents[2].glob(f"*/*/{path.stem}.jsonl"), key=os.path.getmtime))


def test_a_window_that_was_learned_late_cuts_no_earlier_result(recorded, plays):
    told = error(400, {"error": {"message": "This model's maximum context length is 6000 tokens."}})
    long = calls((SHELL, {"command": "seq 1 4000"}))
    plays(recorded(long, told, *summing(calls(ECHO), say("One."))))


def test_an_interrupt_ends_a_replay(start, recorded, tmp_path):
    path = recorded(calls((SHELL, {"command": "sleep 3"})), say("One."), say("Two."), say("Three."), said="a\nb\nc\n")
    process = start("--replay", path, "--start_dir", tmp_path)
    assert any("Running sleep 3" in line for line in process.stdout)
    process.send_signal(signal.SIGINT)
    shown, _ = process.communicate(timeout=10)
    assert process.returncode == 130 and "stopped by the user" in shown and "Two." not in shown
