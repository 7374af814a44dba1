"""The five tools, with a real shell and on real files: a test for each property."""

import os
import re
import stat
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from conftest import disk_with_room_for, somebody, within
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tinyagent
from tinyagent import TOOLS, Tool, Workspace, difference

LIMIT = 1_000  # bytes of a result
KEY = "sk-0123456789"
PROPERTY = settings(
    max_examples=100,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
LINUX = pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="here the dead are not told from the living")
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs the rights of root")
BEAT = "while :; do echo beat >> beat; sleep 0.02; done"  # a command that shows that it is alive


@pytest.fixture
def space(tmp_path):
    """The tools, in an empty directory."""
    (tmp_path / "work").mkdir()
    return Workspace(tmp_path / "work", tmp_path / "output", LIMIT, KEY)


@pytest.fixture
def tools(space):
    return {name: Tool(getattr(space, name)) for name in TOOLS}


def shell(space, command, timeout=120, reason=lambda: ""):
    """The first line of what a command gives back, and the rest; it is sent the reason to stop at each tick."""
    running, sent = space.run_shell_command(command, timeout), None
    try:
        while True:
            running.send(sent)
            sent = reason()
    except StopIteration as end:
        status, _, output = end.value.partition("\n")
        return status, output


def done(tool, *arguments):
    """What a tool gives back, when it is let do all that it is about to do."""
    work = tool(*arguments)
    try:
        while True:
            next(work)
    except StopIteration as end:
        return end.value


def begun(space):
    """Whether the command that shows that it is alive has begun to."""
    return (space.directory / "beat").exists()


def beats(space):
    """Whether the command that shows that it is alive still does."""
    before = (space.directory / "beat").stat().st_size
    time.sleep(0.2)
    return (space.directory / "beat").stat().st_size > before


def files(directory):
    return sorted(path.name for path in directory.iterdir())


def refusal(function, *arguments):
    """The one line with which a tool refuses its arguments, at once."""
    with within(1), pytest.raises((OSError, ValueError)) as refused:
        result = function(*arguments)
        next(result) if not isinstance(result, str) else None
    assert "\n" not in str(refused.value)
    return str(refused.value)


# ------------------------------------------------------------------------------------------------------------- shell


@pytest.mark.parametrize(
    "command, status",
    [
        ("true", "exit code 0"),
        ("", "exit code 0"),
        ("# nothing", "exit code 0"),
        ("exit 3", "exit code 3"),
        ("exit 300", "exit code 44"),
        ("false | true", "exit code 0"),
        ("no-such-command", "exit code 127"),
        ('echo "', "exit code 2"),
        ("kill -9 $$", "killed by signal 9"),
        ("kill -SEGV $$", "killed by signal 11"),
        ("(kill -9 $BASHPID)", "exit code 137"),
    ],
)
def test_the_first_line_is_how_the_command_ended(space, command, status):
    assert shell(space, command)[0].partition(" (")[0] == status


def test_what_goes_to_both_streams_comes_back_in_order(space):
    assert shell(space, "echo one; echo two >&2; echo three")[1] == "one\ntwo\nthree\n"
    assert shell(space, "printf 'no end of line'")[1] == "no end of line"


def test_output_that_is_not_utf_8(space):
    assert shell(space, r"printf 'caf\351\n\360'") == ("exit code 0", "caf\ufffd\n\ufffd")


def test_every_command_starts_in_the_working_directory(space):
    assert shell(space, "mkdir sub; cd sub; export A=1; pwd")[1] == f"{space.directory}/sub\n"
    assert shell(space, "pwd; echo $A")[1] == f"{space.directory}\n\n"


@pytest.mark.parametrize("command, output", [("cat", ""), ("read x; echo $?", "1\n"), ("wc -c", "0\n")])
def test_nothing_is_on_standard_input(space, command, output):
    with within(5):
        assert shell(space, command)[1].strip() == output.strip()


def test_it_has_its_own_session_and_process_group(space):
    process = f"exec '{sys.executable}' -c 'import os; print(os.getpid(), os.getsid(0), os.getpgid(0))'"
    pid, session, group = shell(space, process)[1].split()
    assert pid == session == group
    assert int(session) != os.getsid(0)


def test_nothing_waits_for_a_person(space):
    assert shell(space, "echo $PAGER $GIT_PAGER $EDITOR $GIT_EDITOR $GIT_TERMINAL_PROMPT")[1] == "cat cat true true 0\n"


def test_the_key_is_not_in_the_environment_of_commands(space, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("ANOTHER_NAME", f"{KEY}\n")
    monkeypatch.setenv("HARMLESS", "value")
    environment = shell(space, "env")[1]
    assert KEY not in environment and "ANOTHER_NAME" not in environment
    assert "HARMLESS=value\n" in environment


def test_no_variable_with_the_key_in_it_is_in_the_environment_of_commands(space, monkeypatch):
    monkeypatch.setenv("HEADER", f"Authorization: Bearer {KEY}")
    monkeypatch.setenv("SERVER", f"https://{KEY}@host/v1")
    assert KEY not in shell(replace(space, limit=100_000), "env")[1]
    assert "PATH=" in shell(replace(space, limit=100_000, secret="b"), "env")[1]  # which is no secret


def test_without_a_key_the_whole_environment_is_there(space, monkeypatch):
    monkeypatch.setenv("EMPTY", "")
    assert shell(replace(space, secret=""), "env | grep ^EMPTY")[1] == "EMPTY=\n"


def test_a_process_in_the_background_is_not_waited_for(space):
    with within(5):
        status, output = shell(space, "sleep 300 & echo $!")
    pid, _, remark = output.partition("\n")
    assert status == "exit code 0" and "running" in remark
    os.kill(int(pid), 0)  # it is
    assert space.close() == 1
    with pytest.raises(ProcessLookupError):
        while True:
            os.kill(int(pid), 0)  # until its parent has taken notice


def test_what_runs_on_in_the_background_does_not_disturb_the_output(space):
    printing = "(echo more; touch go; for i in $(seq 200000); do echo more; done) &"
    command = f"rm -f go; echo the beginning; {printing} until [ -e go ]; do sleep 0.02; done; sleep 0.1"
    outputs = [shell(space, command)[1] for _ in range(3)]
    assert [output[:18] for output in outputs] == ["the beginning\nmore"] * 3


@LINUX
def test_the_dead_that_nobody_took_notice_of_do_not_run():
    process = subprocess.Popen(["sleep", "300"], start_new_session=True)
    assert tinyagent.groups_of(process.pid)
    with within(5):
        process.kill()
        while tinyagent.groups_of(process.pid):
            time.sleep(0.01)
    os.killpg(process.pid, 0)  # it is still there
    process.wait()


def test_a_timeout_keeps_what_was_printed_and_kills_the_whole_group(space):
    with within(8):
        ended = shell(space, f"echo begun; (trap '' TERM; {BEAT}) & trap '' TERM; wait", timeout=1)
    assert ended == ("timed out after 1 second", "begun\n")
    assert not beats(space)


def test_a_timeout_is_not_held_up_by_what_left_the_group(space):
    with within(6):
        assert shell(space, "setsid sleep 8; true", timeout=1)[0] == "timed out after 1 second"


def sleeping(seconds):
    """Whether a process sleeps for so long."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(path.read_bytes())
    return f"sleep\0{seconds}\0".encode() in found


@LINUX
@pytest.mark.parametrize(
    "command", ["timeout 60 sleep {}; echo x", "set -m; sleep {} & wait", "set -m; sleep {}; true"]
)
def test_a_timeout_ends_other_groups_of_the_command_too(space, command):
    seconds = f"59.{os.getpid()}"
    assert shell(space, command.format(seconds), timeout=1)[0] == "timed out after 1 second"
    assert not sleeping(seconds)


@LINUX
@pytest.mark.parametrize("command", ["timeout 60 sleep {} > /dev/null 2>&1 & echo hi", "set -m; sleep {} & echo hi"])
def test_other_groups_that_a_command_leaves_are_told_and_end_with_the_session(space, command):
    seconds = f"58.{os.getpid()}"
    status, output = shell(space, command.format(seconds))
    assert (status, output[:3]) == ("exit code 0", "hi\n") and "running" in output
    assert sleeping(seconds) and space.close() == 1
    assert not sleeping(seconds)


def test_a_reason_ends_it(space):
    with within(5):
        ended = shell(space, f"echo begun; {BEAT}", reason=lambda: "interrupted by the user" * begun(space))
    assert ended == ("interrupted by the user", "begun\n")
    assert not beats(space)


def test_giving_up_on_it_ends_it_and_leaves_no_file(space):
    running = space.run_shell_command(BEAT)
    with within(5):
        while not begun(space):
            next(running)
        running.close()
    assert not beats(space)
    assert files(space.output) == []


def test_a_flood_is_ended(space, monkeypatch):
    monkeypatch.setattr(tinyagent, "FLOOD", 100_000)
    with within(10):
        status, output = shell(space, "yes")
    assert status == "ended at 100,000 bytes of output"
    assert output.startswith("y\ny\n") and len(output) < LIMIT + 300


def test_long_output_is_cut_and_a_file_has_the_whole(space):
    output = shell(space, "seq 5000")[1]
    whole = "".join(f"{number}\n" for number in range(1, 5001))
    (kept,) = space.output.iterdir()
    assert output.startswith(whole[:400]) and output.endswith(whole[-400:])
    assert f"{len(whole):,} bytes" in output and str(kept) in output and len(output) < LIMIT + 300
    assert kept.read_text() == whole and stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_all_long_outputs_are_in_one_folder(space):
    for _ in range(2):
        shell(space, "seq 5000")
    assert len(files(space.output)) == 2


def test_output_up_to_the_limit_is_not_cut(space):
    assert shell(space, f"head -c {LIMIT} /dev/zero | tr '\\0' x")[1] == "x" * LIMIT
    assert files(space.output) == []
    assert shell(space, f"head -c {LIMIT + 1} /dev/zero | tr '\\0' x")[1] != "x" * (LIMIT + 1)


SHORT = ["echo short", "exit 1", "kill -9 $$", "echo a\0b", "echo \ud800", f"true {'x' * 200_000}"]


@pytest.mark.parametrize("command", SHORT, ids=lambda command: ascii(command)[:20])
def test_short_output_leaves_no_file_behind(space, command):
    try:
        shell(space, command)
    except (OSError, ValueError) as error:  # that command cannot be started
        assert "\n" not in str(error)
    assert files(space.output) == []


def test_a_file_that_was_cut_is_not_called_the_whole(space, monkeypatch):
    monkeypatch.setattr(tinyagent, "SAVED", 5_000)
    output = shell(space, "seq 5000")[1]
    (kept,) = space.output.iterdir()
    assert kept.stat().st_size == 5_000
    assert "the whole" not in output


def test_a_cut_falls_between_characters(space):
    assert "\ufffd" not in shell(space, "printf x; printf 'é%.0s' $(seq 2000)")[1]


def test_the_limit_holds_for_what_is_no_text_too(space):
    output = shell(space, r"head -c 5000 /dev/zero | tr '\0' '\377'")[1]
    assert len(output.encode()) < LIMIT + 300


def test_many_calls_leave_no_descriptors_open(space):
    (space.directory / "sub").mkdir()
    before = len(os.listdir("/dev/fd"))
    for _ in range(10):
        shell(space, "true")
        refusal(space.read_from_file, "sub")
        refusal(space.read_from_file, "missing")
    assert len(os.listdir("/dev/fd")) == before


# -------------------------------------------------------------------------------------------------------------- list


def test_a_listing_is_sorted_and_marks_directories(space):
    for name in ("b.txt", "a b.txt", ".hidden"):
        (space.directory / name).touch()
    (space.directory / "c").mkdir()
    (space.directory / "link").symlink_to("c")
    (space.directory / "dangling").symlink_to("gone")
    assert space.list_files() == ".hidden\na b.txt\nb.txt\nc/\ndangling\nlink/"
    assert space.list_files("c") == "(empty)"


def test_a_listing_survives_a_link_to_itself(space):
    (space.directory / "loop").symlink_to("loop")
    assert space.list_files() == "loop"


def test_a_long_listing_is_capped(space):
    for number in range(600):
        (space.directory / f"{number:03}").touch()
    lines = replace(space, limit=24_000).list_files().splitlines()
    assert lines[:500] == [f"{number:03}" for number in range(500)]
    assert lines[500:] == ["[... 100 more]"]


def test_a_listing_of_long_names_keeps_to_the_limit(space):
    for number in range(50):
        (space.directory / f"{number:03}{'x' * 200}").touch()
    assert len(space.list_files()) < LIMIT + 300


def test_what_cannot_be_listed(space):
    (space.directory / "file").touch()
    assert "missing" in refusal(space.list_files, "missing")
    assert "file" in refusal(space.list_files, "file")


# -------------------------------------------------------------------------------------------------------------- read


@pytest.mark.parametrize("text", ["one\ntwo\n", "no end", "a\r\nb\nc\rd", "é 😀 \x0c <|endoftext|>\n", " \n\n"])
def test_a_text_is_read_as_it_is(space, text):
    (space.directory / "file").write_bytes(text.encode())
    assert space.read_from_file("file") == text


def test_an_empty_file_is_said_to_be_empty(space):
    (space.directory / "file").touch()
    assert space.read_from_file("file") == "(empty)"


@pytest.mark.parametrize(
    "first, number, text",
    [
        (1, 2, "1\n2\n\n[lines 1 to 2 of 5]"),
        (4, 9, "4\n5\n\n[lines 4 to 5 of 5]"),
        (-3, 1, "1\n\n[lines 1 to 1 of 5]"),
        (1, 5, "1\n2\n3\n4\n5\n"),
    ],
)
def test_some_lines_of_a_file(space, first, number, text):
    (space.directory / "file").write_text("1\n2\n3\n4\n5\n")
    assert space.read_from_file("file", first, number) == text


@pytest.mark.parametrize("column", [8, 9, 50])
def test_past_the_end_of_a_line(space, column):
    (space.directory / "file").write_text("".join(f"line {number}\n" for number in range(1, 7)))
    read = space.read_from_file("file", 3, column=column)
    assert read.strip() == "line 4\nline 5\nline 6\n\n[lines 3 to 6 of 6]"


def test_past_the_end_of_a_file(space):
    (space.directory / "file").write_text("1\n2\n3\n4\n5\n")
    with pytest.raises(ValueError, match="has 5 lines"):
        space.read_from_file("file", 6, 9)


@pytest.mark.parametrize("number", [0, -1])
def test_at_least_one_line_is_read(space, number):
    (space.directory / "file").write_text("1\n2\n3\n4\n5\n")
    assert space.read_from_file("file", 0, number) == "1\n\n[lines 1 to 1 of 5]"


def test_a_long_file_is_cut_and_its_size_told(space):
    text = "".join(f"line {number}\n" for number in range(300))
    (space.directory / "file").write_text(text)
    read = space.read_from_file("file")
    shown, _, remark = read.partition("\n[")
    assert text.startswith(shown) and LIMIT - 20 < len(shown) < LIMIT
    assert remark == f"lines 1 to {len(shown.splitlines())} of 300]"


def test_a_long_line_is_read_in_parts(space):
    line = "é" * 600 + "x" * 900 + "\n"
    (space.directory / "file").write_text("first\n" + line + "last\n")
    parts, where = [], {"first_line": 2}
    while where:
        part, _, remark = space.read_from_file("file", **where, line_count=1).rpartition("\n[")
        parts.append(part)
        where = {name: int(number) for name, number in re.findall(r"(first_line|column)=(\d+)", remark)}
    assert "".join(parts) == line and len(parts) == 3


def test_bytes_that_are_no_text_are_replaced(space):
    (space.directory / "file").write_bytes(b"caf\xe9\n")
    assert space.read_from_file("file") == "caf\ufffd\n"


# ------------------------------------------------------------------------------------------------------------- write


@pytest.mark.parametrize("content", ["", "x", "a\r\nb\rc\n", "é 😀\n", "\n", "\ufeffx"])
def test_exactly_the_content_is_written(space, content):
    (space.directory / "file").write_text("something longer than all of these\n")
    told = done(space.write_to_file, "file", content)
    assert (space.directory / "file").read_bytes() == content.encode()
    assert re.search(rf"\b{len(content.encode())} bytes?\b.*\bfile$", told)


@pytest.mark.parametrize("path", ["d/e/file", "my file.txt", "./d/../file", "x" * 255, "中" * 85], ids=range(5))
def test_a_new_file_and_its_parents_are_made(space, path):
    (space.directory / "d").mkdir()
    done(space.write_to_file, path, "new")
    assert (space.directory / path).read_text() == "new"
    assert [name for name in files(space.directory) if name.startswith(".")] == []


def test_an_absolute_path_and_a_tilde(space, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    done(space.write_to_file, "~/here", "home")
    done(space.write_to_file, str(tmp_path / "there"), "absolute")
    assert space.read_from_file("~/here") == "home" == (tmp_path / "here").read_text()
    assert (tmp_path / "there").read_text() == "absolute"
    assert files(space.directory) == []


def test_a_tilde_may_be_the_first_letter_of_a_name(space):
    (space.directory / "~$report").write_text("text")
    assert space.read_from_file("~$report") == "text"


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755])
def test_permissions_stay_as_they_are(space, mode):
    file = space.directory / "file"
    file.write_text("old\n")
    file.chmod(mode)
    done(space.write_to_file, "file", "new\n")
    assert stat.S_IMODE(file.stat().st_mode) == mode
    done(space.edit_file, "file", "new", "newer")
    assert stat.S_IMODE(file.stat().st_mode) == mode


def test_a_write_that_breaks_off_leaves_the_file_as_it_was(space):
    (space.directory / "a").write_text("old")
    with disk_with_room_for(1_000), pytest.raises(OSError):
        done(space.write_to_file, "a", "x" * 5_000)
    assert (space.directory / "a").read_text() == "old" and files(space.directory) == ["a"]


@contextmanager
def full_disk(directory):
    """A small disk there, with two names of a file on it and no room for more."""
    directory.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", directory], capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        (directory / "a").write_bytes(b"old\n" * 2_000)
        os.link(directory / "a", directory / "b")
        with suppress(OSError), open(directory / "rest", "wb", 0) as rest:
            while rest.write(bytes(4096)):
                pass
        yield directory
    finally:
        subprocess.run(["umount", "-l", directory], check=True)


@ROOT
@pytest.mark.skipif(sys.platform != "linux", reason="has no tmpfs")
def test_a_file_with_two_names_stays_as_it_was_when_the_disk_is_full(space):
    with full_disk(space.directory / "disk") as disk:
        with pytest.raises(OSError, match="No space left"):
            done(space.write_to_file, "disk/a", "new" * 30_000)
        assert (disk / "a").read_bytes() == (disk / "b").read_bytes() == b"old\n" * 2_000
        assert files(disk) == ["a", "b", "rest"]


@ROOT
@pytest.mark.parametrize("mode", [0o4755, 0o2755, 0o666], ids=oct)
def test_owner_and_mode_stay(space, mode):
    file = space.directory / "file"
    file.write_text("old\n")
    os.chown(file, 1234, 1235)
    file.chmod(mode)
    done(space.edit_file, "file", "old", "new")
    after = file.stat()
    assert (after.st_uid, after.st_gid, stat.S_IMODE(after.st_mode)) == (1234, 1235, mode)
    assert file.read_text() == "new\n"


@ROOT
def test_a_file_of_somebody_else_that_all_may_write_stays_theirs():
    with TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        file = Path(folder, "file")
        file.write_text("old\n")
        os.chown(file, 1234, 1234)
        file.chmod(0o666)
        space = Workspace(Path(folder), Path(folder, "output"), LIMIT, KEY)
        with somebody():
            done(space.edit_file, "file", "old", "new")
        after = file.stat()
        assert (after.st_uid, after.st_gid, stat.S_IMODE(after.st_mode)) == (1234, 1234, 0o666)
        assert file.read_text() == "new\n" and files(file.parent) == ["file"]


def test_a_new_file_has_the_usual_permissions(space):
    before = os.umask(0o027)
    try:
        done(space.write_to_file, "file", "new\n")
    finally:
        os.umask(before)
    assert stat.S_IMODE((space.directory / "file").stat().st_mode) == 0o640


@pytest.mark.parametrize("target", ["file", "new"])
def test_a_link_stays_a_link_and_its_target_changes(space, target):
    (space.directory / "file").write_text("old\n")
    (space.directory / "link").symlink_to(target)
    done(space.write_to_file, "link", "changed\n")
    done(space.edit_file, "link", "changed", "changed twice")
    assert (space.directory / "link").is_symlink()
    assert (space.directory / target).read_text() == "changed twice\n"


# -------------------------------------------------------------------------------------------------------------- edit


@PROPERTY
@given(st.binary(), st.text(alphabet="ab\r\né", min_size=1), st.text(alphabet="xy\r\n"), st.binary())
def test_only_the_matched_bytes_change(space, before, old, new, after):
    data, old_bytes = before + old.encode() + after, old.encode()
    places = sum(data.startswith(old_bytes, place) for place in range(len(data)))
    (space.directory / "file").write_bytes(data)
    if places == 1 and old != new:
        done(space.edit_file, "file", old, new)
        data = before + new.encode() + after
    else:
        refusal(space.edit_file, "file", old, new)
    assert (space.directory / "file").read_bytes() == data


@pytest.mark.parametrize(
    "before, old, new, after",
    [
        (b"a\r\nb\nc", "b", "B", b"a\r\nB\nc"),
        (b"a\r\nb\r\n", "a\r\nb", "c", b"c\r\n"),
        (b"caf\xe9\nfoo\n", "foo", "bar", b"caf\xe9\nbar\n"),
        (b"a.c abc", "a.c", r"\1", rb"\1 abc"),
        (b"a b", " b", "", b"a"),
    ],
)
def test_an_edit_in_bytes(space, before, old, new, after):
    (space.directory / "file").write_bytes(before)
    assert "line" in done(space.edit_file, "file", old, new)
    assert (space.directory / "file").read_bytes() == after


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("one", "x", "3 times, at lines [1, 2, 4]"),
        ("three", "x", "not in file"),
        ("two", "two", "`new` another"),
        ("", "x", "`old` must be some text"),
        ("ONE", "x", "not in file"),
        ("}\n}", "x", "2 times, at lines [5, 6]"),
    ],
)
def test_an_edit_that_is_not_clear_changes_nothing(space, old, new, said):
    (space.directory / "file").write_text("one\ntwo one\n\none\n}\n}\n}\n")
    before = (space.directory / "file").stat()
    assert said in refusal(space.edit_file, "file", old, new)
    assert (space.directory / "file").stat().st_ino == before.st_ino
    assert (space.directory / "file").stat().st_mtime_ns == before.st_mtime_ns


def test_all_places_when_asked_for(space):
    (space.directory / "file").write_text("zero\none two one\none\n")
    assert done(space.edit_file, "file", "one", "1", True) == "Replaced 3 places in file, line 2"
    assert (space.directory / "file").read_text() == "zero\n1 two 1\n1\n"


def test_what_is_not_in_a_long_file_of_equal_lines_is_told_soon(space):
    (space.directory / "file").write_text("0, 0, 0, 0,\n" * 60_000)
    old = "0, 0, 0, 0,\n" * 400 + "0, 0, 0, 1,\n"
    with within(10), pytest.raises(ValueError, match="`old` is not in file"):
        done(space.edit_file, "file", old, "y")


# -------------------------------------------------------------------------------------------------------------- diffs

ODD = {  # what is hard to see: before, after
    "line separator": (b"a\xe2\x80\xa8b\n", b"a\nb\n"),
    "paragraph separator": (b"a\xe2\x80\xa9b\n", b"a\nb\n"),
    "next line": (b"a\xc2\x85b\n", b"a\nb\n"),
    "vertical tab": (b"a\x0bb\n", b"a\nb\n"),
    "form feed": (b"a\x0cb\n", b"a\nb\n"),
    "carriage return": (b"a\rb\n", b"a\nb\n"),
    "no text": (b"a\xffb\n", b"a\xef\xbf\xbdb\n"),
    "no-break space": (b"a\xc2\xa0b\n", b"a b\n"),
}
UNSEEN = "\u200b\u00ad\ufeff\u00a0\u2060\u3164\U000e0041"
ODD |= {f"U+{ord(char):04X}": (f"a{char}b\n".encode(), b"ab\n") for char in UNSEEN}
ENDS = {
    "one line": (b"a\r\nb\r\nc\r\n", b"a\r\nb\nc\r\n"),
    "all lines": (b"a\r\nb\r\n", b"a\nb\n"),
    "a file of one": (b"a\r\n", b"a\n"),
    "the last": (b"a\nb\n", b"a\nb"),
    "all there is": (b"\n", b""),
}


def changed(before, after):
    """The lines that a diff takes away, and those that it adds, without their signs."""
    text = difference(before, after)
    assert not re.search(rf"[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029{UNSEEN}]", text)
    lines = text.split("\n")[1:]
    return [[line[1:] for line in lines if line.startswith(sign)] for sign in "-+"]


@pytest.mark.parametrize("there, back", [(0, 1), (1, 0)], ids=["there", "back"])
@pytest.mark.parametrize("name", [*ODD, *ENDS])
def test_a_change_that_is_hard_to_see_is_shown(name, there, back):
    texts = (ODD | ENDS)[name]
    gone, new = changed(texts[there], texts[back])
    assert gone or new
    assert name in ENDS or gone != new


def test_line_ends_that_stay_are_no_change():
    assert difference(b"a\r\nb\r\nc\r\n", b"a\r\nB\r\nc\r\n").split("\n")[1:] == [" a", "-b", "+B", " c"]


PIECES = [b"a", b"\n", b"\r\n", b"\r", b"\xe2\x80\xa8", b"\xff", b"\xef\xbf\xbd", b"\x0c", b"\\x0c"]
ANY = st.lists(st.sampled_from(PIECES), max_size=8).map(b"".join)


@PROPERTY
@given(ANY, ANY)
def test_every_change_has_a_line(before, after):
    assert before == after or any(changed(before, after))


# ----------------------------------------------------------------------------------------------- what is no such file


@pytest.fixture
def oddities(space):
    """The tools, in a directory with what is no regular file."""
    os.mkfifo(space.directory / "pipe")
    (space.directory / "link-to-pipe").symlink_to("pipe")
    (space.directory / "link-to-device").symlink_to("/dev/zero")
    (space.directory / "sub").mkdir()
    (space.directory / "loop").symlink_to("loop")
    (space.directory / "file").write_text("text\n")
    return space


PLACES = ["pipe", "link-to-pipe", "/dev/zero", "link-to-device", "sub", "", "file/child", "x" * 300, "a\0b"]


@pytest.mark.parametrize("path", PLACES, ids=[ascii(path)[:20] for path in PLACES])
def test_what_is_no_regular_file_is_refused(oddities, path):
    before = files(oddities.directory)
    reasons = [
        refusal(oddities.read_from_file, path),
        refusal(oddities.write_to_file, path, "content"),
        refusal(oddities.edit_file, path, "old", "new"),
    ]
    assert min(map(len, reasons)) > 10
    assert files(oddities.directory) == before


@pytest.mark.parametrize("path", ["missing", "no/such", "sub", "pipe", "/dev/zero", "~no-such-user/x"])
def test_a_refusal_names_the_path(oddities, path):
    assert path in refusal(oddities.read_from_file, path)
    assert path in refusal(oddities.edit_file, path, "old", "new")


def test_a_file_larger_than_the_memory_is_not_edited(space):
    (space.directory / "large").touch()
    os.truncate(space.directory / "large", 200 << 30)
    assert "large" in refusal(space.edit_file, "large", "old", "new")


def test_reading_a_file_larger_than_the_disk_comes_to_an_end(space):
    (space.directory / "large").touch()
    os.truncate(space.directory / "large", 2 << 40)
    with within(10), suppress(ValueError):
        assert len(space.read_from_file("large")) < LIMIT + 300


def test_a_link_to_itself_is_refused(oddities):
    assert "loop" in refusal(oddities.read_from_file, "loop")
    with pytest.raises((OSError, RuntimeError), match="loop"):
        done(oddities.write_to_file, "loop", "content")


# --------------------------------------------------------------------------------------------------------- arguments

SHELL, LIST, READ, WRITE, EDIT = TOOLS
WRONG = [  # tool, arguments, the one that is wrong, what is said of it
    (SHELL, {}, "command", "Missing"),
    (SHELL, {"command": ["ls", "-l"]}, "command", "string"),
    (SHELL, {"command": None}, "command", "string"),
    (SHELL, {"command": "touch x", "timeout": "soon"}, "timeout", "integer"),
    (SHELL, {"command": "touch x", "timeout": 0}, "timeout", "greater than or equal to 1"),
    (SHELL, {"command": "touch x", "cwd": "/"}, "cwd", "Unexpected"),
    (LIST, {"path": "."}, "path", "Unexpected"),
    (LIST, {"directory": 5}, "directory", "string"),
    (READ, {"first_line": 1}, "path", "Missing"),
    (READ, {"path": "x", "first_line": 1.5}, "first_line", "integer"),
    (WRITE, {"path": "x"}, "content", "Missing"),
    (WRITE, {"path": "x", "content": None}, "content", "string"),
    (WRITE, {"path": "x", "content": {"a": 1}}, "content", "string"),
    (EDIT, {"path": "x", "old": "a"}, "new", "Missing"),
    (EDIT, {"path": "x", "old": "a", "new": "b", "replace_all": "perhaps"}, "replace_all", "bool"),
]


@pytest.mark.parametrize("name, arguments, wrong, said", WRONG)
def test_wrong_arguments_are_named_and_nothing_runs(space, tools, name, arguments, wrong, said):
    reason = refusal(tools[name].bind, arguments)
    assert re.search(rf"\b{wrong}: [^;]*{said}", reason)
    expected = tools[name].spec["function"]["parameters"]["properties"]
    assert reason.endswith(", ".join(expected))
    assert files(space.directory) == []


def test_all_that_is_wrong_is_told_at_once(tools):
    reason = refusal(tools[EDIT].bind, {"old": 1, "more": 2})
    assert re.findall(r"(\w+): [A-Z]", reason) == ["path", "old", "new", "more"]


def test_arguments_are_converted_and_the_call_runs_when_it_is_called(space, tools):
    call = tools[WRITE].bind({"path": "x", "content": "text"})
    assert files(space.directory) == []
    assert "4 bytes" in done(call) and files(space.directory) == ["x"]
    assert tools[SHELL].bind({"command": "ls", "timeout": "30"}).keywords == {"command": "ls", "timeout": 30}


@pytest.mark.parametrize(
    "name, arguments, saying",
    [
        (SHELL, {"command": "pytest -q"}, "Running pytest -q"),
        (SHELL, {"command": "cd x &&\n  make {a} {}"}, "Running cd x && make {a} {}"),
        (LIST, {}, "Listing ."),
        (READ, {"path": "a.py"}, "Reading a.py"),
        (WRITE, {"path": "a.py", "content": "a\nb\n"}, "Writing a.py (2 lines)"),
        (WRITE, {"path": "a.py", "content": "a"}, "Writing a.py (1 line)"),
        (EDIT, {"path": "a.py", "old": "a", "new": "b"}, "Editing a.py"),
    ],
)
def test_a_call_is_described_in_a_few_words(tools, name, arguments, saying):
    assert tools[name].describe(tools[name].bind(arguments)) == saying


def test_a_description_is_short(tools):
    saying = tools[SHELL].describe(tools[SHELL].bind({"command": "echo \ud800" + "x" * 10_000}))
    assert len(saying) <= 200 and saying.startswith("Running echo \\ud800x")
