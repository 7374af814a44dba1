"""The conversation on a terminal: keys go into a real pty, and the screen is read as a person sees it."""

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path
from unicodedata import normalize

import pexpect
import pytest
from conftest import command, wait_for
from scripted import HANG, Pause, Server, calls, chunk, error, event, raw, response, say

STOP = chunk({}, "stop")
WAIT = "while [ ! -e go ]; do sleep 0.1; done"
UP, TAB, INTERRUPT, END, SUSPEND = "\x1b[A", "\t", "\x03", "\x04", "\x1a"
PLAIN = pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["no colour", "dumb"])


def shell(text):
    return "run_shell_command", {"command": text}


def ends(number):
    """Waits until there is no such process."""
    deadline = time.monotonic() + 10
    with suppress(FileNotFoundError, ProcessLookupError):
        while Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.fixture
def script(tmp_path):
    """Makes a program of a script; gives back its path."""

    def script(text, name="editor", by="/bin/bash"):
        path = tmp_path / name
        path.write_text(f"#!{by}\n{text}\n")
        path.chmod(0o755)
        return str(path)

    return script


def last(server, number=-1):
    """The messages of a request: pairs of role and content."""
    return [(message["role"], message["content"]) for message in server.requests[number].body["messages"][1:]]


# ---------------------------------------------------------------------------------------------------------------- look

MARKDOWN = "## Plan\nSome **bold** and `code **x**`.\n```py\n**raw** # no heading\n```\nhalf a li"


def test_markdown_is_rendered_line_by_line(window):
    parts = [event(chunk({"content": MARKDOWN})), Pause(2), event(chunk({"content": "ne"})), event(STOP)]
    with Server(raw(*parts), prefix=False) as server:
        seen = window(server)
        seen.press("go\r")
        seen.until("half a li", "answering", gone=["half a line", "thinking"])
        shown = seen.until("half a line", "[1 step", gone=["answering"])
    assert "## Plan\nSome bold and `code **x**`.\n```py\n**raw** # no heading\n```\nhalf a line\n[1 step" in shown
    assert all(char.bold for char in seen.colour("## Plan"))
    assert [char.bold for char in seen.colour("Some bold and")] == [False] * 5 + [True] * 4 + [False] * 4
    assert not any(char.bold for char in seen.colour("**raw**"))
    assert seen.colour("Some bold and `code")[-1].fg == "cyan"


def test_a_turn_with_tools(window, workspace):
    """Each call has the sign of its kind; the output of a command is there while it runs, then its result."""
    count = "for i in $(seq 9); do echo line $i; done; while [ ! -e go ]; do sleep 0.1; done"
    called = shell(count), ("write_to_file", {"path": "a.txt", "content": "1\n"}), ("list_files", {})
    with Server(calls(*called), say("Done."), prefix=False) as server:
        seen = window(server, "--price", "1000,1000,1000")
        seen.press("go\r")
        seen.until("running", "  line 5\n  line 6\n  line 7\n  line 8\n  line 9", gone=["line 4"])
        (workspace / "go").touch()
        shown = seen.until("Done.", "[2 steps", gone=["running", "thinking", "answering"])
    assert f"$ Running {count}" in shown.replace("\n", "") and "  exit code 0\n  line 1\n  ... 6 lines ...\n" in shown
    assert "~ Writing a.txt (1 line)\n  @@ line 1 @@\n  +1\n  Wrote 2 bytes" in shown
    assert "- Listing .\n  a.txt\n  go\nDone.\n" in shown
    told = r"\[2 steps, \d+ s, [\d,]+ tokens in \([\d,]+ cached\), \d+ out, \$\d\.\d+; context window \d%\]"
    assert re.search(told, shown)
    assert [char.fg for char in seen.colour("  +1")[2:]] == ["green", "green"]


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_thoughts_are_shown_while_they_last(window, api):
    thoughts = [event(chunk({"reasoning_content": text})) for text in ("First this.\n", "Then ", "that.")]
    thinking = raw(*thoughts, Pause(1.5), event(chunk({"content": "So."})), event(STOP))
    summary = response("So.")
    slow = raw(*[part if isinstance(part, bytes) else event(part.last) for part in summary.parts[:4]], HANG)
    with Server(thinking if api == "chat" else slow, prefix=False) as server:
        seen = window(server, "--api", api)
        seen.press("go\r")
        seen.until("thinking ", " s  Then that." if api == "chat" else " s  **Thinking**", gone=["First"])
        if api == "chat":
            seen.until("So.\n[1 step", gone=["Then that"])


def test_a_wait_is_counted_down(window):
    with Server(error(503, "overloaded", {"Retry-After": "3"}), say("Hello."), prefix=False) as server:
        seen = window(server)
        seen.press("go\r")
        seen.until("! HTTP 503: overloaded\n! trying again in 3.0 s", "trying again in 2 s")
        seen.until("trying again in 1 s")
        seen.until("Hello.", gone=["in 1 s", "in 2 s"])


WIDE = "\u4f60\u597d\uff0c\u4e16\u754c " * 12 + "e\u0301\u0302 " * 30 + "\U0001f600\u2764 " * 20


@pytest.mark.parametrize("columns", [20, 41])
def test_wide_characters_in_a_narrow_window(window, columns, workspace):
    """The rows at the bottom leave nothing behind, and take nothing with them."""
    slow = [part for i in range(0, len(WIDE), 8) for part in (event(chunk({"content": WIDE[i : i + 8]})), Pause(0.03))]
    printing = shell(f"for i in $(seq 30); do echo '{WIDE[:60]}' $i; sleep 0.02; done")
    with Server(calls(printing), raw(*slow, event(STOP)), prefix=False) as server:
        seen = window(server, size=(30, columns))
        seen.press("go\r")
        seen.until("step", gone=["running", "thinking", "answering"])
    text = "".join(seen.screen)
    letters, on_screen = (re.sub(r"[\s\ufe0f]", "", normalize("NFC", part)) for part in (WIDE, text))
    assert letters in on_screen
    assert re.sub(r"\s", "", text).count("Running") == 1 and text.count("exit code 0") == 1


def test_a_window_that_becomes_narrower(window):
    parts = [part for i in range(40) for part in (event(chunk({"content": f"word{i:02} "})), Pause(0.04))]
    with Server(raw(event(chunk({"content": "A first line.\n"})), *parts, event(STOP)), prefix=False) as server:
        seen = window(server, size=(30, 90))
        seen.press("go\r")
        seen.until("word10")
        seen.child.setwinsize(30, 50)
        shown = seen.until("[1 step", gone=["thinking", "answering"])
    assert "A first line." in shown and all(f"word{i:02}" in seen.printed.decode() for i in range(40))


@PLAIN
def test_plain_text_is_complete_and_never_rewritten(window, env):
    busy = shell("echo out; sleep 0.5; echo more")
    with Server(error(503, "busy", {"Retry-After": "1"}), calls(busy), say(MARKDOWN), prefix=False) as server:
        seen = window(server, **env)
        before = len(seen.printed)
        seen.say("go", "half a li")
    printed = seen.printed[before:].decode().replace("\r\n", "\n")
    assert "\x1b[" not in re.sub(r"\x1b\[\?2004[hl]\r?", "", printed)
    for text in ("! HTTP 503: busy", "$ Running echo out", "  out\n  more", MARKDOWN, "[2 steps"):
        assert text in printed, text


def test_a_flood_of_chunks_arrives_complete(window):
    words = [f"{number}\n" if number % 50 == 0 else f"{number} " for number in range(5000)]
    with Server(raw(b"".join(event(chunk({"content": word})) for word in words), event(STOP)), prefix=False) as server:
        seen = window(server)
        seen.press("go\r")
        seen.until("[1 step", gone=["thinking", "answering"])
    shown = re.sub(rb"\x1b\[[\d;?]*[A-Za-z]", b"", seen.printed)
    assert all(f"{number}".encode() in shown for number in range(5000))


HOSTILE = "a\x1b]52;c;aGk=\x07b\x1b[6n\x9bc\x1bcd\re\x08"


def test_no_control_byte_of_others_reaches_the_terminal(window, workspace):
    (workspace / HOSTILE.replace("\x9b", "")).touch()
    split = [event(chunk({"content": text})) for text in ("\x1b", "]52;c;aGk=\x07", "\x9b6n\r", HOSTILE)]
    thought = event(chunk({"reasoning_content": HOSTILE}))
    called = calls(shell(f"printf '%s' '{HOSTILE}'; sleep 1"), ("list_files", {}))
    script = error(503, HOSTILE, {"Retry-After": "0"}), called, raw(thought, Pause(0.3), *split, event(STOP))
    with Server(*script, prefix=False) as server:
        seen = window(server)
        seen.say("go", "[2 steps")
    printed = seen.printed.decode("utf-8", "replace")
    ours = re.sub(r"\x1b\[(\?2004[hl]\r?|\d*[mFGJK]|\d+;\d+m|C)", "", printed.replace("\r\n", "\n"))
    assert not re.search(r"[\x07\x08\x1b\x9b]|\r(?!\n)", ours.partition("go\n")[2].partition("[2 steps")[0])


def test_an_ascii_terminal(window):
    with Server(say("\u2713 \u00e9 \U0001f600 done"), prefix=False) as server:
        seen = window(server, PYTHONIOENCODING="ascii")
        seen.press(b"\xff\xfe hello\r")
        seen.until("? ? ? done")
    assert "hello" in last(server)[-1][1]


def test_a_locale_that_knows_only_ascii(window, home):
    """Nothing that is typed is lost, and a history from another locale is in nobody's way."""
    with Server(say("One."), say("Two."), prefix=False) as server:
        seen = window(server, LC_ALL="C")
        seen.say("h\u00e9\u4e2d", "One.")
        assert last(server)[-1] == ("user", "h\u00e9\u4e2d")
        seen.press(END)
        assert seen.ended() == 0
        (history,) = home.glob("*/history")
        history.write_text('"caf\\u00e9 \\u4e2d"\n"caf\u00e9 \u4e2d"\n', encoding="utf-8")
        again = window(server, LC_ALL="C")
        again.say("again", "Two.")
        again.press(END)
        assert again.ended() == 0


def test_what_is_half_typed_in_a_locale_that_knows_only_ascii(window, home):
    slow = raw(event(chunk({"content": "An answer "})), Pause(1), event(chunk({"content": "at last."})), event(STOP))
    with Server(slow, say("Two."), prefix=False) as server:
        seen = window(server, LC_ALL="C")
        seen.press("go\r")
        seen.until("An answer")
        seen.press("caf\u00e9")
        seen.until("[1 step", "\n> caf\u00e9")
        seen.press("\r")
        seen.until("Two.", "[1 step")
        seen.prompt()
        assert last(server)[-1] == ("user", "caf\u00e9")
        seen.press("th\u00e9")
        seen.until("\n> th\u00e9")
        seen.press(INTERRUPT)
        seen.prompt()
    (history,) = home.glob("*/history")
    assert [json.loads(line) for line in history.read_text().splitlines()][-2:] == ["caf\u00e9", "th\u00e9"]


def test_a_window_of_one_row(window):
    words = [f"word{i:02} " for i in range(30)]
    slow = [part for word in words for part in (event(chunk({"content": word})), Pause(0.05))]
    with Server(raw(*slow, event(STOP)), prefix=False) as server:
        seen = window(server, size=(1, 60))
        seen.press("go\r")
        seen.until("[1 step")
    shown = "".join(seen.screen)
    assert [word for word in words if shown.count(word.strip()) != 1] == []


def test_of_a_line_that_is_written_again_its_last_state_is_shown(window):
    again = shell("for i in 1 2 3; do printf '\\rxx '$i; sleep 0.4; done; sleep 0.6")
    with Server(calls(again), say("Done."), prefix=False) as server:
        seen = window(server)
        seen.press("go\r")
        for number in range(1, 4):
            seen.until("running", f"\n  xx {number}\n")
        assert b"1xx" not in seen.printed
        seen.until("Done.")


def test_a_call_that_does_not_run_is_named_above_its_result(window, workspace):
    called = ("frobnicate", {}), ("read_from_file", {}), shell(WAIT), ("list_files", {})
    with Server(calls(*called), say("I heard."), prefix=False) as server:
        seen = window(server)
        seen.press("go\r")
        seen.until("running")
        seen.press("use tabs\r")
        seen.until("(taken")
        (workspace / "go").touch()
        shown = seen.until("I heard.")
    assert "\n* frobnicate\n  error: there is no such tool" in shown
    assert "\n* read_from_file\n  error: " in shown and "\n* list_files\n  skipped: the user spoke\n" in shown


# --------------------------------------------------------------------------------------------------- speak at any time


def test_a_hint_reaches_the_model_between_two_calls(window, workspace, run, home):
    called = calls(
        shell("touch began; while [ ! -e go ]; do sleep 0.1; done"), shell("touch never"), ("list_files", {})
    )
    with Server(called, say("I heard."), say("Later."), prefix=False) as server:
        seen = window(server)
        seen.press("go\r")
        seen.until("running")
        seen.press("use tabs\r")
        seen.until("> use tabs\n  (taken")
        (workspace / "go").touch()
        seen.until("I heard.", "[2 steps")
        seen.press(END)
        assert seen.ended() == 0
        assert [text for role, text in last(server) if role == "tool"][1:] == ["skipped: the user spoke"] * 2
        assert last(server)[-1] == ("user", "use tabs") and not (workspace / "never").exists()
        run("go on", "--start_dir", workspace, "--resume", server=server)
    assert ("user", "use tabs") in last(server)
    (journal,) = home.glob("*/sessions/*.jsonl")
    (workspace / "replayed").mkdir()
    (workspace / "replayed" / "go").touch()
    again = run("--replay", journal, "--start_dir", workspace / "replayed")
    assert again.returncode == 0 and not (workspace / "replayed" / "never").exists()


def test_a_hint_during_the_answer_goes_on_with_the_turn(window):
    slow = raw(event(chunk({"content": "An answer "})), Pause(1.5), event(chunk({"content": "at last."})), event(STOP))
    with Server(slow, say("As you wish."), prefix=False) as server:
        seen = window(server)
        seen.press("go\r")
        seen.until("An answer")
        seen.press("shorter\r")
        seen.until("(taken", "As you wish.", "[2 steps")
        assert "An answer at last." in "\n".join(seen.screen)
    assert last(server)[-2:] == [("assistant", "An answer at last."), ("user", "shorter")]


def test_nothing_typed_is_lost(window):
    """Half a line stands in the next prompt, also after a Ctrl-C; so does a hint that came too late."""
    with Server(raw(HANG), raw(HANG), say("One."), say("Two."), prefix=False) as server:
        seen = window(server)
        seen.press("go\r")
        seen.until("thinking")
        server.wait()
        seen.press("half a \x7f\x7fXX\x17li")
        seen.until("> half li")
        seen.press("more", INTERRUPT)
        seen.until("! interrupted", "> half limore")
        seen.press("!\r")
        seen.until("thinking", "> half limore!")
        seen.press("too late\r")
        seen.until("(taken")
        server.wait(2)
        seen.press(INTERRUPT)
        seen.until("\n> too late", gone=["thinking"])
        seen.press("\r")
        seen.until("One.")
    assert last(server)[-1][1].endswith("too late") and "half limore!" in last(server)[-1][1]


def test_what_is_typed_behind_an_unknown_command_stays(window):
    with Server(say("Hello."), prefix=False) as server:
        seen = window(server)
        seen.press("/nonsense\rhello\r")
        seen.until("there is no command /nonsense", "Hello.")
    assert last(server) == [("user", "hello")]


def test_a_key_that_arrives_in_pieces_is_no_text(window):
    """Also a paste whose frame does; the Escape key alone is nothing."""
    with Server(raw(HANG), say("Yes."), prefix=False) as server:
        seen = window(server)
        seen.press("go\r")
        seen.until("thinking")
        for piece in ("a\x1b", "[", "A", "b\x1b[1;", "5Cc\x1bO", "Bd\x1b[2", "00~e\rf\x1b[20", "1~g\x1b", "h"):
            seen.press(piece)
            seen.look(0.2)
        seen.until("> abcde fg")
        seen.press(INTERRUPT)
        seen.until("! interrupted")
        seen.press("\r")
        seen.until("Yes.")
    assert last(server)[-1][1] == "go\n\nabcde\nfg"


def test_a_paste_without_its_end_swallows_nothing(window):
    with Server(raw(HANG), raw(HANG), say("Yes."), prefix=False) as server:
        seen = window(server)
        seen.press("go\r")
        seen.until("thinking")
        server.wait()
        seen.press("\x1b[200~one")
        for _ in range(3):
            seen.look(0.1)
        seen.press(INTERRUPT)
        seen.until("! interrupted", "> one")
        seen.press("\r")
        server.wait(2)
        seen.press("two")
        seen.until("\n> two")


def test_orders_wait_for_the_end_of_the_turn(window, workspace):
    with Server(calls(shell(WAIT)), say("Done."), prefix=False) as server:
        seen = window(server)
        seen.press("go\r")
        seen.until("running")
        seen.press("/context\r", "!echo mine\r", "/contxt\r")
        seen.until("after this turn")
        (workspace / "go").touch()
        seen.until("Done.", "> /context\ncontext window:", "> !echo mine\n", "\nmine\n", "there is no command /contxt")
    assert len(server.requests) == 2


# ---------------------------------------------------------------------------------------------------------------- stop

BUSY = {
    "a stream": [raw(event(chunk({"content": "Once upon"})), HANG)],
    "a wait": [error(503, "busy", {"Retry-After": "60"})],
    "a command": [calls(shell("sleep 1234 & echo $! > pid; trap '' TERM; wait; sleep 1234"))],
}


@pytest.mark.parametrize("kind", BUSY)
def test_an_interrupt_gives_the_prompt_back(window, workspace, kind):
    with Server(*BUSY[kind], say("Still here."), prefix=False) as server:
        seen = window(server)
        seen.press("go\r")
        seen.until({"a stream": "Once upon", "a wait": "trying again in 5", "a command": "running"}[kind])
        if kind == "a command":
            number = int(wait_for(workspace / "pid"))
        seen.press(INTERRUPT)
        seen.until("! interrupted", gone=["thinking", "running", "in 5"])
        assert ("what was shown of this reply is withdrawn" in "\n".join(seen.screen)) == (kind == "a stream")
        seen.say("and now?", "Still here.")
        if kind == "a command":
            ends(number)
        seen.press(INTERRUPT)
        assert seen.ended() == 130 and "Go on with:" in "".join(seen.screen)


ENDS = {"Ctrl-C": (INTERRUPT, 130), "Ctrl-D": (END, 0), "exit": ("/exit\r", 0)}


@pytest.mark.parametrize(("keys", "code"), ENDS.values(), ids=ENDS)
def test_the_end_says_how_to_resume(window, keys, code):
    with Server(say("Hello."), prefix=False) as server:
        seen = window(server)
        seen.say("go", "Hello.")
        seen.press(keys)
        assert seen.ended() == code
    assert re.search(r"Go on with: .*--resume \d", "".join(seen.screen))


def test_an_interrupt_drops_the_line_and_the_arrow_brings_it_back(window):
    with Server(say("Hello."), prefix=False) as server:
        seen = window(server)
        seen.press("one\\\r", "two", INTERRUPT)
        seen.until(". two\n>")
        seen.press(UP, "!\r")
        seen.until("Hello.")
    assert last(server) == [("user", "one\ntwo!")]


@pytest.mark.parametrize("when", ["at the prompt", "in a turn"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_signals_end_it_whole(window, workspace, home, number, when):
    with Server(calls(shell("trap '' TERM; echo $$ > pid; while :; do sleep 1; done")), prefix=False) as server:
        seen = window(server)
        if when == "in a turn":
            seen.press("go\r")
            child = int(wait_for(workspace / "pid"))
            seen.press("half a line")
            seen.until("> half a line")
        else:
            seen.press("half\\\ra line")
            seen.until(". a line")
        for other in (number, signal.SIGTERM, signal.SIGHUP):  # also one after the other
            seen.child.kill(other)
            seen.look()
        assert seen.ended() == 130
        again = window(server)
        again.press(UP)
        again.until("half", "a line")
    if when == "in a turn":
        ends(child)
        (journal,) = home.glob("*/sessions/*.jsonl")
        kinds = [json.loads(line)["type"] for line in journal.read_text().splitlines() if line]
        assert "tool_returned" in kinds and kinds[-1] == "result"


SLEEP = "sleep 1234 & echo $! > pid; wait"


@pytest.mark.parametrize("when", ["in a call", "in a command of one's own", "at a question", "at the prompt"])
def test_a_terminal_that_goes_away_ends_it(window, workspace, home, when, tmp_path):
    with Server(calls(shell(SLEEP)), prefix=False) as server:
        options, busy = ["--ask"] * (when == "at a question"), when.startswith("in a ")
        seen = window(server, *options, by=f'exec "$@" 2>{tmp_path}/errors')
        if when != "at the prompt":
            seen.press("!" + SLEEP + "\r" if "own" in when else "go\r")
        if busy:
            number = int(wait_for(workspace / "pid"))
        if when == "at a question":
            seen.until("Do this?")
        with open(os.devnull, "r+b") as nothing:
            os.dup2(nothing.fileno(), seen.child.child_fd)
        assert seen.child.wait() == 130
        if busy:
            ends(number)
    assert "Traceback" not in (tmp_path / "errors").read_text()
    for journal in home.glob("*/sessions/*.jsonl"):
        assert json.loads(journal.read_text().splitlines()[-1])["type"] == "result"
    assert len([*home.glob("*/sessions/*.jsonl")]) == (when != "at the prompt")


def stopped(seen):
    """Waits until the agent is stopped."""
    state = f"/proc/{seen.child.pid}/stat"
    deadline = time.monotonic() + 10
    while open(state).read().rpartition(")")[2].split()[0] != "T":  # noqa: SIM115
        assert time.monotonic() < deadline
        seen.look()


def test_suspended_and_on_again(window, workspace):
    """In a command and at the prompt, with half a line; the terminal is given back meanwhile."""
    with Server(calls(shell(WAIT)), say("Done."), say("Bye."), prefix=False) as server:
        seen = window(server)
        seen.press("go\r")
        seen.until("running")
        seen.press(SUSPEND)
        stopped(seen)
        assert termios.tcgetattr(seen.child.child_fd)[:4] == seen.modes[:4]
        seen.child.kill(signal.SIGCONT)
        (workspace / "go").touch()
        seen.until("Done.", "[2 steps")
        seen.press("half a ")
        seen.until("> half a")
        seen.press(SUSPEND)
        stopped(seen)
        seen.child.kill(signal.SIGCONT)
        seen.press("line\r")
        seen.until("Bye.")
    assert last(server)[-1] == ("user", "half a line")


def test_suspended_at_a_question(window):
    with Server(calls(shell("echo hello")), say("I see."), prefix=False) as server:
        seen = window(server, "--ask")
        seen.press("go\r")
        seen.until("why not:")
        seen.press("not ")
        seen.until("why not: not")
        seen.press(SUSPEND)
        stopped(seen)
        seen.child.kill(signal.SIGCONT)
        seen.until("why not: not")
        seen.press("that\r")
        seen.until("I see.", "user says: not that")


def test_an_editor_that_spoils_the_terminal(window, tmp_path, script):
    spoil = f'cat "$1" > {tmp_path}/given; echo from the editor >> "$1"; stty raw -echo'
    with Server(say("Hello."), prefix=False) as server:
        seen = window(server, EDITOR=script(f"{spoil}; [ ! -e {tmp_path}/die ] || kill -9 $$"), VISUAL="")
        seen.say("/edit a draft", "Hello.")
        (tmp_path / "die").touch()
        seen.say("/edit another", "nothing is sent: the editor ended with -9")
        seen.press(END)
        assert seen.ended() == 0
    assert (tmp_path / "given").read_text() == "another" and last(server) == [("user", "a draftfrom the editor")]


def test_a_signal_ends_the_editor_and_what_it_saved_is_in_the_history(window, home, tmp_path, script):
    editor = script(f'echo draft > "$1"; echo $$ > {tmp_path}/pid; exec sleep 20')
    with Server(prefix=False) as server:
        seen = window(server, EDITOR=editor, VISUAL="")
        seen.press("/edit\r")
        number, began = int(wait_for(tmp_path / "pid")), time.monotonic()
        seen.child.kill(signal.SIGTERM)
        assert seen.ended() == 130 and time.monotonic() - began < 8
    ends(number)
    (history,) = home.glob("*/history")
    assert '"draft"' in history.read_text().splitlines()


def test_signals_at_the_keyboard_are_the_editors(window, tmp_path, script):
    """It lives on when it ignores a Ctrl-C, and a Ctrl-Z that it passes on leaves the terminal as the editor set it."""
    text = f"""
import os, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
open("{tmp_path}/began", "w").write("yes")
while not os.path.exists("{tmp_path}/go"):
    time.sleep(0.05)
os.kill(os.getppid(), signal.SIGTSTP)
time.sleep(0.3)
subprocess.run(["stty", "raw", "-echo"])
os.kill(os.getppid(), signal.SIGCONT)
time.sleep(0.5)
told = subprocess.run(["stty", "-a"], capture_output=True, text=True).stdout
open(sys.argv[1], "a").write("raw" if "-icanon" in told else "spoiled")"""
    with Server(say("Hello."), prefix=False) as server:
        seen = window(server, EDITOR=script(text, by=sys.executable), VISUAL="")
        seen.press("/edit\r")
        wait_for(tmp_path / "began")
        for _ in range(2):
            seen.press(INTERRUPT)
            seen.look(0.3)
        (tmp_path / "go").touch()
        seen.until("Hello.")
    assert last(server) == [("user", "raw")]


def test_three_interrupts_end_it_with_all_that_runs(window, workspace, home):
    """What was typed meanwhile is in the history."""
    with Server(calls(shell("trap '' TERM; echo $$ > pid; while :; do sleep 1; done")), prefix=False) as server:
        seen = window(server)
        seen.press("go\r")
        child = int(wait_for(workspace / "pid"))
        seen.press("a hint\r", "/diff\r", "half")
        seen.until("(taken", "after this turn", "\n> half")
        for _ in range(3):
            seen.press(INTERRUPT)
            seen.look(0.3)
        assert seen.ended() in (130, -signal.SIGINT)  # the last may come when all is done
    ends(child)
    (history,) = home.glob("*/history")
    assert {'"a hint"', '"/diff"', '"half"'} <= {*history.read_text().splitlines()}


@pytest.mark.parametrize("more", [["task"], []], ids=["one shot", "conversation"])
@pytest.mark.parametrize("kind", ["a stream", "a command"])
def test_a_second_interrupt_still_tells_how_the_turn_ended(start, workspace, home, kind, more):
    slow = say("Once upon a time", pieces=100, pause=0.1)
    stubborn = calls(shell("trap '' TERM; echo $$ > pid; while :; do sleep 1; done"))
    with Server(slow if kind == "a stream" else stubborn, prefix=False) as server:
        process = start(*more, "--json", "--start_dir", workspace, server=server, stdin=subprocess.PIPE)
        process.stdin.write("go\n" * (not more))
        process.stdin.flush()
        if kind == "a stream":
            while "text_arrived" not in process.stdout.readline():
                assert process.poll() is None
        else:
            child = int(wait_for(workspace / "pid"))
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(0.005 if kind == "a stream" else 0.3)
        output, errors = process.communicate(timeout=15)
    if kind == "a command":
        ends(child)
    (journal,) = home.glob("*/sessions/*.jsonl")
    for lines in (output, journal.read_text()):
        told = json.loads(lines.splitlines()[-1])
        assert (told["type"], told.get("status")) == ("result", "interrupted")
    assert process.returncode == 130 and "Traceback" not in errors


def test_a_second_interrupt_behind_the_result_leaves_the_exit_code(start, workspace):
    with Server(raw(event(chunk({"content": "Once upon"})), HANG)) as server:
        process = start("go", "--json", "--start_dir", workspace, server=server)
        for kind in ("text_arrived", "result"):
            while f'"type": "{kind}"' not in process.stdout.readline():
                assert process.poll() is None
            time.sleep(0.05)
            process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130


def test_interrupts_at_the_end_leave_nothing_running(window, workspace):
    left = "(trap 'echo > asked' TERM; for i in $(seq 300); do sleep 0.1; done) > /dev/null 2>&1 & echo $! > pid{}"
    with Server(calls(*[shell(left.format(number)) for number in range(3)]), say("Done."), prefix=False) as server:
        seen = window(server)
        seen.say("go", "Done.")
        seen.press(END)
        wait_for(workspace / "asked")
        for _ in range(2):
            seen.press(INTERRUPT)
            seen.look(0.1)
        seen.ended()
    for number in range(3):
        ends(int((workspace / f"pid{number}").read_text()))


def test_an_interrupt_while_the_turn_is_written_down(window, workspace, home, tmp_path, script):
    """It comes behind the answer, while a snapshot is taken."""
    slow = f"[ -e {workspace}/slow ] && [[ $* == *write-tree* ]] && echo yes > {tmp_path}/taken && sleep 1"
    script(f'{slow}\nexec {shutil.which("git")} "$@"', name="git")
    with Server(calls(shell("touch slow")), say("Done."), say("Still here."), prefix=False) as server:
        seen = window(server, PATH=f"{tmp_path}:{os.environ['PATH']}")
        seen.press("go\r")
        wait_for(tmp_path / "taken")
        seen.press(INTERRUPT)
        seen.prompt()
        (workspace / "slow").unlink()
        seen.say("and now?", "Still here.")
    (journal,) = home.glob("*/sessions/*.jsonl")
    kinds = [json.loads(line)["type"] for line in journal.read_text().splitlines() if line]
    assert kinds.count("result") == 2 and kinds[-1] == "result"


def test_an_interrupt_just_after_enter_is_for_the_turn(window, home):
    with Server(say("One."), say("Two."), say("Three."), prefix=False) as server:
        window(server).say("one", "One.")
        (history,) = home.glob("*/history")
        history.write_text("".join(f'"{number} {"x" * 5_000}"\n' for number in range(1_000)))
        seen = window(server)
        seen.press("hello\r")
        while b"hello\r\n" not in seen.printed:
            seen.look()
        seen.press(INTERRUPT)
        seen.prompt()
        seen.say("still here", "T")


def test_a_reason_half_typed_and_orders_at_a_question(window):
    """Neither is lost, and no order goes to the model."""
    with Server(calls(shell("echo hello")), prefix=False) as server:
        seen = window(server, "--ask")
        seen.press("go\r")
        seen.until("why not:")
        seen.press("/context\r")
        seen.until("after this turn", "why not: /context\n")
        seen.press("because")
        seen.until("why not: because")
        seen.press(INTERRUPT)
        seen.until("! interrupted", "context window:")
        seen.prompt()
        seen.press(UP)
        seen.until("\n> because")
    assert len(server.requests) == 1


# ---------------------------------------------------------------------------------------------------------------- type


def test_without_line_editing_enter_says_what_was_typed(window):
    with Server(calls(shell("echo 1")), raw(HANG), say("Two."), prefix=False) as server:
        seen = window(server, "--max_steps", 1, by='"$@" | (trap "" INT; exec cat)')
        seen.press("go\r")
        seen.until("(Enter says: Go on.)")
        seen.press("\r")
        server.wait(2)
        seen.press("a hint\r")
        seen.until("(taken")
        seen.press(INTERRUPT)
        seen.until("(Enter says: a hint)")
        seen.press("\r")
        seen.until("Two.")
    assert last(server)[-1][1] == "Go on.\n\na hint"


def test_several_lines_are_one_message(window):
    with Server(*[say(f"Reply {number}.") for number in range(4)], prefix=False) as server:
        seen = window(server)
        seen.say("\x1b[200~one\ntwo\nthree\x1b[201~", "Reply 0.")
        seen.say("four\\\rfive", "Reply 1.")
        seen.say("```\rsix\r```", "Reply 2.")
        seen.press("\r", "  \r")
        seen.prompt()
    texts = [text for role, text in last(server) if role == "user"]
    assert texts == ["one\ntwo\nthree", "four\nfive", "```\nsix\n```"] and len(server.requests) == 3


def test_a_paste_while_it_works_is_one_hint(window):
    with Server(
        raw(event(chunk({"content": "An answer."})), Pause(1), event(STOP)), say("Yes."), prefix=False
    ) as server:
        seen = window(server)
        seen.press("go\r")
        seen.until("An answer")
        seen.press("\x1b[200~one\r\ntwo", " three\x1b[201~\x1b[C\x1b[3~!\r")
        seen.until("Yes.")
    assert last(server)[-1] == ("user", "one\ntwo three!")


def test_a_paste_that_is_longer_than_the_window_is_counted(window):
    text = "\n".join(f"line {number}" for number in range(60))
    with Server(say("Yes."), prefix=False) as server:
        window(server).say(f"\x1b[200~{text}\x1b[201~", "(60 lines)", "Yes.")
    assert last(server)[-1] == ("user", text)


def test_the_history_is_kept_for_each_directory(window, home, workspace):
    with Server(*[say(f"Reply {number}.") for number in range(5)], prefix=False) as server:
        first = window(server)
        for number, text in enumerate(["one", "two", "one"]):
            first.say(text, f"Reply {number}.")
        second = window(server)
        second.press(UP)
        second.until("\n> one")
        second.press(UP)
        second.until("\n> two")
        second.press(UP, "!\r")
        second.until("Reply 3.")
    (history,) = home.glob("*/history")
    assert history.read_text().splitlines() == ['"two"', '"one"', '"two!"']
    assert stat.S_IMODE(history.stat().st_mode) == 0o600 and history.parent.name.startswith(workspace.name)


def test_a_history_that_is_damaged(window, home, workspace):
    with Server(say("One."), say("Two."), prefix=False) as server:
        window(server).say("one", "One.")
        (history,) = home.glob("*/history")
        history.write_bytes(b"[" * 100_000 + b"\n\xff\n{}\n" + history.read_bytes())
        seen = window(server)
        seen.press(UP)
        seen.until("\n> one")
        seen.press("!\r")
        seen.until("Two.")
    assert history.read_text().splitlines()[-2:] == ['"one"', '"one!"']


def test_tab_completes_files_and_commands(window, workspace):
    (workspace / "folder").mkdir()
    (workspace / "folder" / "file.py").touch()
    with Server(say("Read."), prefix=False) as server:
        seen = window(server)
        seen.press("read @fo", TAB)
        seen.until("> read @folder/")
        seen.press("f", TAB, "\r")
        seen.until("Read.")
        seen.prompt()
        seen.press("/und", TAB, "\r")
        seen.until("> /undo", "No file was put back")
    assert last(server) == [("user", "read @folder/file.py")]


# ------------------------------------------------------------------------------------------------------------ commands


def test_before_anything_was_said_nothing_is_made(run, workspace, home):
    with Server() as server:
        orders = "/save talk.md\n/model other\n/context\n/cost\n/undo\n/redo\n/diff\n"
        shown = run("--start_dir", workspace, stdin=orders, server=server).stdout
    assert "nothing was said" in shown and "The model is other." in shown and "summary" not in shown
    assert [*workspace.iterdir(), *home.rglob("*.jsonl")] == []


def test_json_lines_are_all_that_is_printed(run, workspace):
    with Server(say("Hello."), prefix=False) as server:
        done = run("--json", "--start_dir", workspace, stdin="/start\n/nonsense\n", server=server)
    kinds = [json.loads(line)["type"] for line in done.stdout.splitlines()]
    assert kinds[-1] == "noticed" and len(server.requests) == 1


def test_json_lines_in_a_file_have_no_prompt_between_them(window, workspace, tmp_path):
    with Server(say("Hello."), prefix=False) as server:
        line = ["/bin/sh", "-c", f'exec "$@" >{tmp_path}/out', "sh", *command("--json", server=server)]
        child = pexpect.spawn(line[0], line[1:], timeout=15)
        child.send("hello\r")
        server.wait()
        child.send(END)
        child.wait()
    assert [json.loads(text)["type"] for text in (tmp_path / "out").read_text().splitlines()][-1] == "result"


def test_help_tells_of_every_command(run, workspace):
    with Server() as server:
        shown = run("--start_dir", workspace, stdin="/help\n/nonsense\n", server=server).stdout
    names = "help undo redo diff compact uncompact context model ask cost sessions resume save exit edit start"
    for name in names.split():
        assert re.search(rf"^/{name}\b.*: \w", shown, re.M), name
    assert "there is no command /nonsense" in shown and "Ctrl-Z" in shown and server.requests == []


@pytest.mark.parametrize("end", ["\n", "\r"], ids=["in a pipe", "on a terminal"])
def test_model_ask_cost_and_save(run, window, workspace, end, home):
    orders = ["hello", "/model other", "/ask on", "/cost", "again", *["/save talk.md"] * 2, "!echo mine", "third"]
    script = calls(shell("echo theirs")), say("One."), calls(shell("echo not")), say("Two."), say("Three.")
    with Server(*script, prefix=False) as server:
        if end == "\n":
            shown = run("--start_dir", workspace, stdin="\n".join(orders) + "\n", server=server).stdout
        else:
            seen = window(server)
            texts = ["One.", "other.", "is on.", "out", "Do this?", "Saved", "exists", "mine", "Three."]
            for order, text in zip(orders, texts, strict=True):
                seen.press(order + "\r")
                seen.until(text)
                if order == "again":
                    seen.press("not that\r")
                    seen.until("Two.")
                seen.prompt()
            shown = "\n".join(seen.screen)
        models = [request.body["model"] for request in server.requests]
        assert models[:3] == ["scripted", "scripted", "other"] and "The model is other." in shown
        assert "Approval is on." in shown and re.search(r"\d+ tokens in \(\d+ cached\), \d+ out", shown)
        saved = (workspace / "talk.md").read_text()
        assert "## User\n\nhello" in saved and "**Running echo theirs**\n\n```\nexit code 0\ntheirs\n" in saved
        assert "File exists" in shown
        assert "The user ran this command" in last(server)[-1][1] and last(server)[-1][1].endswith("third")


def test_another_session_is_gone_on_with(window, run, workspace):
    with Server(say("One."), say("Two."), say("Three."), prefix=False) as server:
        run("--start_dir", workspace, "the first", server=server)
        seen = window(server)
        assert "There are earlier sessions here (1): /resume goes on with 20" in "\n".join(seen.screen)
        seen.say("the second", "Two.")
        seen.say("/sessions", "the first", "the second", "(this one)")
        seen.say("/resume nonsense", "! error: no session nonsense")
        seen.say("/resume", "You said last:\nthe first\n", "The model said last:\nOne.")
        seen.say("the third", "Three.")
        assert "another agent" not in "\n".join(seen.screen)
        screen = "\n".join(window(server).screen)  # the first is at work, and again the newest
        assert re.search("sessions here \\(1\\): /resume goes on with (.*)\\.", screen)[1] in "\n".join(seen.screen)
    assert last(server) == [("user", "the first"), ("assistant", "One."), ("user", "the third")]


def test_a_session_of_another_directory_says_where_it_goes_on(window, run, tmp_path, home):
    with Server(say("One."), prefix=False) as server:
        run("the first", "--start_dir", tmp_path, server=server)
        (journal,) = home.glob("*/sessions/*.jsonl")
        seen = window(server)
        seen.say(f"/resume {journal.stem}", "You said last:\nthe first\n")
    assert str(tmp_path) in "".join(seen.screen)


def test_a_command_of_ones_own(window, workspace):
    with Server(say("I see."), say("Gone?"), prefix=False) as server:
        seen = window(server)
        seen.say("!echo made > file; echo printed", "exit code 0", "printed")
        assert server.requests == []
        seen.say("look", "I see.")
        assert [role for role, _ in last(server)] == ["user"] and "printed" in last(server)[0][1]
        seen.say("/undo", "Taken back: look\nNo file was put back")
        seen.say("/undo", "1 file removed: file")
        assert not (workspace / "file").exists()
        seen.press("!echo $$ > pid; sleep 1234\r")
        number = int(wait_for(workspace / "pid"))
        seen.press(INTERRUPT)
        seen.until("! interrupted")
        ends(number)


def test_the_seconds_of_a_turn_begin_with_it(window):
    with Server(say("Hello."), say("Hello."), prefix=False) as server:
        seen = window(server)
        seen.say("/nonsense", "there is no command")
        time.sleep(1.6)
        seen.say("hello", "[1 step, 0 s")


def test_our_own_lines_break_between_words(window):
    with Server(prefix=False) as server:
        seen = window(server, size=(60, 50))
        seen.say("/help", "/undo")
        shown = "\n".join(seen.screen)
    told = "without asking (/ask on changes that)", "has the model look at spec.txt", "What you type while it works"
    assert [text for text in told if text not in " ".join(shown.split())] == []


def test_the_first_screen(window, workspace):
    (workspace / "spec.txt").write_text("a spec")
    with Server(say("Hello."), prefix=False) as server:
        seen = window(server, "--ask", "--sandbox=offline")
        shown = "\n".join(seen.screen)
        assert f"tinyagent in {workspace}, model scripted {server.url}" in shown.replace("\n", "")
        assert "run as you, after asking you; they write only in this directory, and have no network." in shown
        assert "spec.txt; /start" in shown and "/help" in shown
        seen.say("hello", "Hello.")
        again = window(server, "--resume", size=(40, 100)) if seen.press(END) or seen.ended() == 0 else None
    assert "You said last:\nhello\n" in "\n".join(again.screen) and "Hello." in "\n".join(again.screen)


def test_an_editor_that_fails_sends_nothing(window):
    """The text is had back with the arrow key."""
    with Server(prefix=False) as server:
        seen = window(server, EDITOR="sh -c 'echo more >> $0; exit 3'", VISUAL="")
        seen.say("/edit a draft", "nothing is sent: the editor ended with 3")
        seen.press(UP)
        seen.until("\n> a draftmore")
        seen.press("\x15/edit\r")
        seen.until("nothing is sent: the editor ended with 3; the arrow key", gone=["draftmore"])
    assert server.requests == []


def test_an_editor_that_is_named_by_a_blank_is_vi(window, tmp_path, script):
    script('echo from vi > "$1"', name="vi")
    with Server(say("Hello."), prefix=False) as server:
        window(server, EDITOR=" ", VISUAL="", PATH=f"{tmp_path}:{os.environ['PATH']}").say("/edit", "Hello.")
    assert last(server) == [("user", "from vi")]


def test_a_key_is_not_in_the_editors_environment(window, tmp_path, script):
    with Server(prefix=False) as server:
        seen = window(server, EDITOR=script(f"env > {tmp_path}/env"), VISUAL="", OPENAI_API_KEY="sk-secret-key")
        seen.say("/edit")
        text = wait_for(tmp_path / "env")
    assert "sk-secret-key" not in text and "EDITOR=" in text
