"""What the user is asked before it is done, what is shown of it, and what is taken back: approval, diffs, undo."""

import os
import shutil
import subprocess
import sys
import time

import pytest
from conftest import git, of, result, turn
from scripted import Server, calls, say

from tinyagent import LEFT, Agent, Asked, Changing, Noticed, Printed, Session, ToolReturned

WRITE = ("write_to_file", {"path": "a.txt", "content": "one\ntwo\n"})
EDIT = ("edit_file", {"path": "a.txt", "old": "two", "new": "2"})
ECHO = ("run_shell_command", {"command": "echo hello | tee out.txt"})
READ = ("read_from_file", {"path": "a.txt"})


def answers(*texts):
    """Approves so; the list that it leaves has the questions."""
    questions, given = [], iter(texts)

    def approve(question):
        questions.append(question)
        return next(given)

    return approve, questions


# ----------------------------------------------------------------------------------------------------------- approval


def test_each_command_and_each_write_is_asked_for_in_full(agent, workspace):
    with Server(calls(WRITE, EDIT, READ, ECHO), say("Done.")) as server:
        told = agent(server, ask=True)
        told.approve, asked = answers("y", "yes", " Y ")
        events = turn(told)
    assert [question.tool for question in asked] == ["write_to_file", "edit_file", "run_shell_command"]
    assert asked == of(Asked, events) and asked[2].plan == ECHO[1]["command"]
    assert "+two" in asked[0].plan and "-two\n+2" in asked[1].plan
    assert (workspace / "a.txt").read_text() == "one\n2\n" and (workspace / "out.txt").exists()


def test_always_is_for_one_tool(agent, workspace):
    more = ("run_shell_command", {"command": "echo more"})
    with Server(calls(ECHO), calls(more, WRITE), say("Done.")) as server:
        told = agent(server, ask=True)
        told.approve, asked = answers("a", "no")
        assert result(told).status == "done"
    assert [question.tool for question in asked] == ["run_shell_command", "write_to_file"]
    assert not (workspace / "a.txt").exists()


@pytest.mark.parametrize(
    "path", ["{}", "./" * 110 + "{}", "folder/a.txt", "link"], ids=["up", "long", "folder", "link"]
)
@pytest.mark.parametrize("tool, arguments", [WRITE, EDIT], ids=["write", "edit"])
def test_a_question_shows_where_a_path_leads(agent, workspace, tmp_path, tool, arguments, path):
    (tmp_path / "a.txt").write_text("two\n")
    (workspace / "folder").symlink_to(tmp_path)
    (workspace / "link").symlink_to(tmp_path / "a.txt")
    path = path.format(os.path.relpath(tmp_path / "a.txt", workspace))
    with Server(calls((tool, arguments | {"path": path})), say("I see.")) as server:
        told = agent(server, ask=True)
        told.approve, _ = answers("no")
        (question,) = of(Asked, turn(told))
    assert str(tmp_path.resolve() / "a.txt") in question.plan and (tmp_path / "a.txt").read_text() == "two\n"


@pytest.mark.parametrize("word", ["use tabs", "", "n", "ye", "yes please"])
def test_anything_else_is_no_and_goes_to_the_model(agent, workspace, word):
    with Server(calls(WRITE, ECHO), say("I see.")) as server:
        told = agent(server, ask=True)
        told.approve, _ = answers(word, word)
        events = turn(told)
    assert events[-1].status == "done" and list(workspace.iterdir()) == []
    assert [word in back.text and back.failed for back in of(ToolReturned, events)] == [True, True]
    assert server.requests[-1].body["messages"][-1]["content"].startswith("error: not done")


@pytest.mark.parametrize(
    ("before", "called"), [("two\n", EDIT), ("old\n", WRITE), ("", WRITE)], ids=["edited", "written", "new"]
)
def test_a_file_that_was_changed_while_the_question_stood_is_left_alone(agent, workspace, before, called):
    def approve(_):
        (workspace / "a.txt").write_text("two, and mine\n")
        return "y"

    if before:
        (workspace / "a.txt").write_text(before)
    with Server(calls(called), say("I see.")) as server:
        told = agent(server, ask=True)
        told.approve = approve
        (back,) = of(ToolReturned, turn(told))
    assert back.failed and "changed meanwhile" in back.text
    assert (workspace / "a.txt").read_text() == "two, and mine\n"


def test_an_approval_that_comes_too_late_runs_nothing(agent, workspace):
    def approve(_):
        time.sleep(1.2)
        return "y"

    with Server(calls(ECHO, WRITE), say("I see.")) as server:
        told = agent(server, ask=True, max_seconds=1)
        told.approve = approve
        assert result(told).status == "limit"
    assert list(workspace.iterdir()) == []


@pytest.mark.parametrize("arguments", [["task"], []], ids=["one shot", "pipe"])
def test_nobody_to_ask_is_never_a_yes(run, workspace, arguments):
    with Server(calls(ECHO, WRITE), say("And now?")) as server:
        done = run("--start_dir", workspace, "--ask", "--json", *arguments, stdin="task\n", server=server)
        run("--start_dir", workspace, "--resume", "--ask", "go on", server=server)
    assert '"status": "needs_input", "exit_code": 3' in done.stdout and done.returncode == 3
    assert list(workspace.iterdir()) == []
    assert server.requests[-1].body["messages"][-2]["content"].startswith("Not run")


def test_a_conversation_in_a_pipe_ends_as_its_last_turn_did(run, workspace):
    with Server(calls(ECHO), calls(ECHO), say("Hello."), calls(READ), prefix=False) as server:
        here = "--start_dir", workspace, "--ask"
        ended = [run(*here, stdin=said, server=server).returncode for said in ("edit\n", "edit\nhello\n")]
        ended.append(run(*here, "--max_steps", 1, stdin="read\n", server=server).returncode)
    assert ended == [3, 0, 4]


def test_the_question_hides_nothing(window, workspace):
    tricky = "echo safe\rrm -rf important\n\x1b[2Kecho second line \u202e end; bash run\u200e.sh"
    with Server(calls(("run_shell_command", {"command": tricky})), say("As you like.")) as server:
        seen = window(server, "--ask")
        seen.press("go\r")
        seen.until("Do this")
        shown = seen.printed.decode().partition("$ Running")[2].partition("Do this")[0]
        seen.press("not that\r")
        seen.until("As you like")
    assert "rm -rf important" in shown and "second line" in shown and "\x1b[2K" not in shown and "\u202e" not in shown
    assert "\r" not in shown.replace("\r\n", "")
    assert "\\u202e end; bash run\\u200e.sh" in shown.rpartition("second line")[2]
    assert "not that" in server.requests[-1].body["messages"][-1]["content"]


def test_an_interrupt_at_the_question_is_a_no(window, workspace):
    with Server(calls(ECHO), say("Still here.")) as server:
        seen = window(server, "--ask")
        seen.press("go\r")
        seen.until("Do this")
        seen.press("\x03")
        seen.until("interrupted")
        seen.prompt()
        seen.say("hello", "Still here")
    assert list(workspace.iterdir()) == []


# ---------------------------------------------------------------------------------------------------- what is shown

LONG = "".join(f"{number}\n" for number in range(3_000))
DIFFS = {  # before, arguments of the edit -> lines of the diff
    "a line in the middle": ("1\n2\n3\n4\n5\n", ("3", "three"), ["@@ line 3 @@", " 2", "-3", "+three", " 4"]),
    "the last, without an end": ("1\n2", ("2", "two"), ["-2", "+two"]),
    "all of it": ("1", ("1", "one"), ["-1", "+one"]),
    "removed": ("1\n2\n3\n", ("2\n", ""), ["-2"]),
    "in a long file": (LONG, ("\n1500\n", "\nx\n"), ["@@ line 1501 @@", " 1498", "-1500", "+x", " 1502"]),
}


@pytest.mark.parametrize("name", DIFFS)
def test_a_change_is_shown_as_a_diff(agent, workspace, name):
    before, (old, new), lines = DIFFS[name]
    (workspace / "a.txt").write_text(before)
    with Server(calls(("edit_file", {"path": "a.txt", "old": old, "new": new})), say("Done.")) as server:
        (change,) = of(Changing, turn(agent(server)))
    assert [line for line in lines if line not in change.diff.splitlines()] == []


def test_a_change_of_much_is_told_whole(agent, workspace):
    content = "".join(f"{number}\n" for number in range(30_000))
    with Server(
        calls(("write_to_file", {"path": "big", "content": content})), *[say("Done.")] * 2, prefix=False
    ) as server:
        (change,) = of(Changing, turn(agent(server)))
    assert change.diff.splitlines() == ["@@ line 1 @@", *(f"+{number}" for number in range(30_000))]


@pytest.mark.parametrize(("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_diffs_are_coloured_where_that_is_wanted(window, env, coloured):
    with Server(calls(WRITE), say("Done.")) as server:
        seen = window(server, **env)
        seen.press("go\r")
        seen.until("Done", "+two")
    assert (b"\x1b[32m" in seen.printed) == coloured


def test_a_running_command_shows_its_last_lines_and_then_its_result(window):
    counting = "for i in $(seq 40); do echo line $i; sleep 0.03; done"
    with Server(calls(("run_shell_command", {"command": counting})), say("Counted.")) as server:
        seen = window(server)
        seen.press("go\r")
        seen.until("line 15\n")
        seen.until("Counted.", gone=["line 15\n"])
    shown = [line.strip() for line in seen.screen if "line" in line]
    assert shown[-2:] == ["line 39", "line 40"] and not any(f"line {number}" in shown for number in range(10, 30))


def test_what_is_printed_is_an_event_while_it_runs(agent):
    with Server(calls(("run_shell_command", {"command": "echo a; sleep 0.4; echo b"})), say("Done.")) as server:
        events = turn(agent(server))
    assert "a\n" in [event.text for event in of(Printed, events)]


def test_what_runs_on_ends_with_the_session_and_both_are_said(run, workspace):
    waiting = ("run_shell_command", {"command": "sleep 300 & echo $! > pid"})
    with Server(calls(waiting), say("Done.")) as server:
        done = run("go", "--start_dir", workspace, server=server)
    assert "background" in server.requests[-1].body["messages"][-1]["content"]
    assert "ended what 1 command had left running" in done.stderr
    with pytest.raises(ProcessLookupError):
        while True:
            os.kill(int((workspace / "pid").read_text()), 0)
            time.sleep(0.05)


# -------------------------------------------------------------------------------------------------------------- undo


def shell(line):
    return calls(("run_shell_command", {"command": line}))


def test_undo_brings_back_a_source_folder_with_uncommitted_work(agent, workspace):
    (workspace / "src").mkdir()
    (workspace / "src" / "a.py").write_text("committed\n")
    (workspace / ".gitignore").write_text(".env\n")
    (workspace / ".env").write_text("mine\n")
    git(workspace, "init", "-q")
    git(workspace, "add", "-A")
    git(workspace, "commit", "-q", "-m", "one")
    (workspace / "src" / "a.py").write_text("not committed\n")
    (workspace / "src" / "b.py").write_text("not even added\n")
    before = git(workspace, "status", "--porcelain"), git(workspace, "log", "--format=%H")
    index = (workspace / ".git" / "index").read_bytes()
    with Server(
        say("Hello."), shell("rm -rf src && echo new > new"), say("Gone."), say("Yes."), prefix=False
    ) as server:
        told = agent(server)
        for text in ("hello", "clean up"):
            turn(told, text)
        assert not (workspace / "src").exists() and "new file" in result(told, "/diff").text
        assert "put back" in result(told, "/undo").text
        assert (workspace / ".git" / "index").read_bytes() == index
        assert (git(workspace, "status", "--porcelain"), git(workspace, "log", "--format=%H")) == before
        assert (workspace / "src" / "b.py").read_text() == "not even added\n" and not (workspace / "new").exists()
        turn(told, "and?")
    assert (workspace / ".env").read_text() == "mine\n"
    assert [m["content"] for m in server.requests[-1].body["messages"][1:]] == ["hello", "Hello.", "and?"]


def test_undo_is_repeated_and_redone_also_after_a_resume(agent, workspace):
    script = [reply for n in range(3) for reply in (shell(f"echo {n} > file"), say(f"{n}."))]
    with Server(*script, say("Four."), prefix=False) as server:
        told = agent(server)
        for n in range(3):
            turn(told, f"turn {n}")
        whole, seen = [*told.session.messages], []
        for order in ("/undo", "/undo", "/redo"):
            told = agent(server)  # which goes on with the session
            result(told, order)
            seen.append((workspace / "file").read_text())
        assert seen == ["1\n", "0\n", "1\n"]
        result(told, "/redo")
        assert told.session.messages == whole and (workspace / "file").read_text() == "2\n"
        assert "nothing to redo" in result(told, "/redo").text
        result(told, "/undo")
        turn(told, "another way")
        assert "nothing to redo" in result(told, "/redo").text
        for _ in range(3):
            result(told, "/undo")
        assert not (workspace / "file").exists() and "no turn" in result(told, "/undo").text


def test_undo_asks_when_somebody_else_changed_files(agent, workspace):
    with Server(shell("echo agent > file"), say("Done."), prefix=False) as server:
        told = agent(server)
        turn(told, "write")
        (workspace / "file").write_text("somebody\n")
        assert result(told, "/undo").status == "needs_input"  # nobody can be asked
        told.approve, asked = answers("no", "y")
        assert result(told, "/undo").text == LEFT and (workspace / "file").read_text() == "somebody\n"
        assert "somebody" in asked[0].plan and len(told.session.messages) > 1
        assert "\n1 file removed: file" in result(told, "/undo").text and not (workspace / "file").exists()
        assert told.session.messages == []


def test_in_a_pipe_it_is_said_that_nobody_can_be_asked_before_an_undo(start, workspace):
    with Server(calls(WRITE), say("Done."), prefix=False) as server:
        process = start("--start_dir", workspace, server=server, stdin=subprocess.PIPE)
        process.stdin.write("write\n")
        process.stdin.flush()
        assert any("[2 steps" in line for line in process.stdout)
        (workspace / "a.txt").write_text("somebody\n")
        shown, _ = process.communicate("/undo\n", timeout=15)
    assert "not done, since nobody is there to be asked" in shown and "Taken back" not in shown
    assert (workspace / "a.txt").read_text() == "somebody\n"


def test_undo_names_what_it_could_not_put_back(agent, workspace):
    """Where a file was, a folder stands now with what no snapshot has."""
    (workspace / ".gitignore").write_text("*.log\n")
    (workspace / "b").write_text("mine\n")
    with Server(shell("rm b; mkdir b; touch b/x.log a"), say("Done."), prefix=False) as server:
        told = agent(server)
        turn(told, "write")
        text = result(told, "/undo").text
    assert "\n1 file removed: a\n1 file left as it is: b" in text and (workspace / "b" / "x.log").exists()


@pytest.mark.parametrize("order", ["/cost x", "/context\nnow", "/redo\t2"], ids=repr)
def test_what_stands_behind_a_command_that_takes_nothing_is_not_for_the_model(agent, order):
    with Server() as server, pytest.raises(ValueError, match="takes nothing behind it"):
        turn(agent(server), order)


def test_a_file_name_may_stand_behind_any_white_space(agent, workspace):
    with Server(say("Hello."), prefix=False) as server:
        told = agent(server)
        turn(told, "hello")
        assert "Saved" in result(told, "/save\ttalk.md").text and (workspace / "talk.md").exists()
        assert len(server.requests) == 1


def test_a_journal_that_was_removed_begins_again(agent, home):
    with Server(say("One."), say("Two."), say("Three."), prefix=False) as server:
        told = agent(server)
        turn(told, "one")
        shutil.rmtree(home / "work")
        events = turn(told, "two")
        assert len([event for event in of(Noticed, events) if "was removed" in event.text]) == 1
        told.close()
        again = agent(server)
        assert result(again, "three").status == "done"
    assert [message["content"] for message in again.session.messages] == ["two", "Two.", "three", "Three."]


def test_always_is_not_for_undo(agent, workspace):
    with Server(shell("echo 1 > a"), say("One."), shell("echo 2 > a"), say("Two."), prefix=False) as server:
        told = agent(server)
        told.approve, asked = answers("a", "no")
        for text in ("one", "two"):
            turn(told, text)
        for name in ("mine", "more"):
            (workspace / name).write_text("somebody\n")
            result(told, "/undo")
    assert len(asked) == 2 and (workspace / "more").exists()


def test_always_is_not_offered_for_undo_and_redo(window, workspace):
    with Server(shell("echo agent > file"), say("Done."), prefix=False) as server:
        seen = window(server)
        seen.say("write", "Done.")
        for order, told in (("/undo", "Taken back"), ("/redo", "Done again")):
            (workspace / "file").write_text(f"mine before {order}\n")
            seen.press(order + "\r")
            assert "always" not in seen.until(f"+mine before {order}\nDo this?")
            seen.say("y", told)


def test_ask_says_what_needs_no_approval_any_more(agent):
    with Server(calls(ECHO), say("Done."), prefix=False) as server:
        told = agent(server, ask=True)
        told.approve, _ = answers("a")
        assert "run_shell_command" not in result(told, "/ask").text
        turn(told)
        text = result(told, "/ask").text
        assert "is on" in text and "not for run_shell_command" in text
        assert "run_shell_command" not in result(told, "/ask on").text


def test_a_long_diff_is_shown_whole_before_the_question(window):
    content = "".join(f"line {number} {'x' * 250} end {number}\n" for number in range(60))
    with Server(calls(("write_to_file", {"path": "w.txt", "content": content})), say("I see."), prefix=False) as server:
        seen = window(server, "--ask")
        seen.press("go\r")
        seen.until("Do this?")
        shown = "".join(line.strip() for line in seen.screen)
    assert [number for number in range(60) if f"end {number}+line" not in shown.replace("Do this", "+line")] == []


def test_redo_asks_before_it_overwrites_what_was_written_since(agent, workspace):
    with Server(shell("echo agent > file"), say("Done."), prefix=False) as server:
        told = agent(server)
        turn(told, "write")
        result(told, "/undo")
        (workspace / "file").write_text("somebody\n")
        assert result(told, "/redo").status == "needs_input"  # nobody can be asked
        told.approve, asked = answers("no", "y")
        assert result(told, "/redo").text == LEFT and (workspace / "file").read_text() == "somebody\n"
        assert "somebody" in asked[0].plan and told.session.messages == []
        assert "\n1 file put back: file" in result(told, "/redo").text and (workspace / "file").read_text() == "agent\n"
        assert len(told.session.messages) == 4


def test_undo_of_a_turn_with_a_summary_brings_the_whole_back(agent):
    with Server(say("One. " + "word " * 200), say("Two."), say("They talked."), prefix=False) as server:
        told = agent(server)
        turn(told, "first")
        before = [*told.session.messages]
        turn(told, "second")
        result(told, "/compact")
        result(told, "/undo")
    assert told.session.messages == before


def without_git(patch, folder):
    """There is bash on the PATH, and nothing else."""
    (folder / "bash").symlink_to(shutil.which("bash"))
    patch.setenv("PATH", str(folder))


@pytest.mark.parametrize("said", ["go", "!echo 2 > a"], ids=["the model", "the user"])
def test_what_was_changed_before_there_was_git_is_not_known(agent, monkeypatch, tmp_path, said):
    with Server(shell("echo 2 > a"), say("Done."), prefix=False) as server:
        with monkeypatch.context() as patch:
            without_git(patch, tmp_path)
            turn(agent(server), said)
        assert "not known" in result(agent(server), "/diff").text


def test_what_was_changed_in_a_directory_that_moved_is_not_known(agent, workspace, tmp_path):
    with Server(shell("echo 2 > a"), say("Done."), prefix=False) as server:
        told, place = agent(server), workspace
        turn(told)
        for name in ("moved", "again"):
            place = place.rename(tmp_path / name)
            again = Agent(told.config, place, Session(told.session.path), told.chat)
            assert "not known" in result(again, "/diff").text


@pytest.mark.parametrize("folder", ["", "moved"])
def test_where_the_session_only_read_no_file_was_changed(agent, workspace, tmp_path, folder):
    with Server(calls(READ), say("Done."), prefix=False) as server:
        told = agent(server)
        turn(told)
        (tmp_path / "moved").mkdir()
        there = tmp_path / folder if folder else workspace
        again = Agent(told.config, there, Session(told.session.path), told.chat)
        assert result(again, "/diff").text == "No file was changed."


@pytest.mark.parametrize("why", ["no git", "a home"])
def test_where_no_snapshot_can_be_had_it_is_said_once(agent, workspace, monkeypatch, tmp_path, why):
    if why == "a home":
        monkeypatch.setenv("HOME", str(workspace))
    else:
        without_git(monkeypatch, tmp_path)
    with Server(shell("echo 1 > a"), shell("echo 2 > b"), say("Done."), prefix=False) as server:
        told = agent(server)
        events = turn(told)
    assert events[-1].status == "done" and (workspace / "b").exists()
    assert len([event for event in of(Noticed, events) if "undo is off" in event.text]) == 1
    assert "not known" in result(told, "/diff").text


# -------------------------------------------------------------------------------------------------------------- files


def test_a_hard_link_and_an_owner_stay(agent, workspace):
    (workspace / "a.txt").write_text("old\n")
    os.link(workspace / "a.txt", workspace / "b.txt")
    (workspace / "c.txt").write_text("two\n")
    (workspace / "c.txt").chmod(0o751)
    if os.getuid() == 0:
        os.chown(workspace / "c.txt", 1234, 1234)
    before = (workspace / "c.txt").stat()
    edit = ("edit_file", {"path": "c.txt", "old": "two", "new": "2"})
    with Server(calls(WRITE, edit), say("Done.")) as server:
        turn(agent(server))
    assert (workspace / "b.txt").read_text() == "one\ntwo\n" and (workspace / "c.txt").read_text() == "2\n"
    after = (workspace / "c.txt").stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


def test_white_space_that_differs_is_told(agent, workspace):
    (workspace / "a.py").write_text("def f():\n\tif x:\n\t\treturn  1\n")
    edit = ("edit_file", {"path": "a.py", "old": "if x:\n    return 1", "new": "pass"})
    with Server(calls(edit), say("Done.")) as server:
        (back,) = of(ToolReturned, turn(agent(server)))
    assert back.failed and "line 2 differs only in white space" in back.text


def test_a_binary_file_is_named_with_type_and_size(agent, workspace):
    (workspace / "a.png").write_bytes(b"\x89PNG\0" * 100)
    with Server(calls(("read_from_file", {"path": "a.png"})), say("Done.")) as server:
        (back,) = of(ToolReturned, turn(agent(server)))
    assert back.failed and "500 bytes" in back.text and "image/png" in back.text


@pytest.mark.skipif(sys.platform == "win32" or os.getuid() == 0, reason="root may write everything")
def test_a_read_only_file_is_refused(agent, workspace):
    (workspace / "a.txt").write_text("mine\n")
    (workspace / "a.txt").chmod(0o444)
    with Server(calls(WRITE), say("Done.")) as server:
        (back,) = of(ToolReturned, turn(agent(server)))
    assert back.failed and (workspace / "a.txt").read_text() == "mine\n"
