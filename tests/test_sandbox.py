"""What --sandbox lets commands and tools do, and what not: real attempts to get out, on the kernel of this machine."""

import ctypes
import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from scripted import Server, calls, say

from tinyagent import Sandbox, Workspace, all_but

LIBC = ctypes.CDLL(None, use_errno=True)
VERSION = LIBC.syscall(444, None, 0, 1) if sys.platform == "linux" else 0
pytestmark = pytest.mark.skipif(VERSION < 4, reason="needs Landlock of Linux 6.7")
HINT = "[The sandbox may be why: writing is allowed only below "


@pytest.fixture
def outside(tmp_path):
    """A directory that is not granted, with a file in it."""
    (tmp_path / "victim").write_text("data\n")
    return tmp_path


@pytest.fixture
def user(tmp_path_factory, monkeypatch):
    """A home directory with secrets in it, one of them behind links."""
    user = tmp_path_factory.mktemp("user")
    monkeypatch.setenv("HOME", str(user))
    (user / ".ssh").mkdir()
    (user / "dots" / "aws").mkdir(parents=True)
    (user / ".aws").symlink_to("dots/aws")
    (user / ".ssh" / "linked").symlink_to("../dots/key")
    for name in (".ssh/key", "dots/key", "dots/aws/credentials", ".netrc"):
        (user / name).write_text("SECRET\n")
    for name in ("notes", "dots/open"):
        (user / name).write_text("open\n")
    return user


@pytest.fixture
def make(workspace, home, user):
    """Makes tools within a sandbox; it gives back the run of a command, or of a tool."""

    def make(kind="on"):
        sandbox = Sandbox(kind, workspace, home)
        space = Workspace(workspace, sandbox.private / "output", 10_000, "", sandbox)

        def do(command, *arguments, tool="run_shell_command"):
            result, sent = sandbox.run(getattr(space, tool), command, *arguments), None
            try:
                while not isinstance(result, str):
                    sandbox.run(result.send, sent)
                    sent = ""
            except StopIteration as end:
                return end.value
            return result

        do.sandbox, do.space = sandbox, space
        return do

    yield make
    LIBC.prctl(4, 1, 0, 0, 0)  # what a sandbox did to this process: it may be traced again


@pytest.fixture
def do(make):
    return make()


def python(code, *arguments):
    """A command that runs this code with some names imported."""
    code = f"import ctypes, os, socket, sys\nA = sys.argv[1:]\nlibc = ctypes.CDLL(None, use_errno=True)\n{code}"
    return " ".join(f"'{word}'" for word in (sys.executable, "-c", code, *arguments))


def attempt(do, code, *arguments):
    """What the code prints, or the name of the exception that ends it."""
    output = do(python(code, *arguments)).partition("\n")[2].partition("\n[The sandbox")[0].strip()
    return output.splitlines()[-1].partition(":")[0] if output else ""


# ------------------------------------------------------------------------------------------------- what must go on


WORK = {
    "devices": "echo x > /dev/null && head -c9 /dev/zero > zero && head -c9 /dev/urandom > random",
    "streams": "echo a > /dev/stdout; echo b > /dev/stderr; cat < <(echo c) && tee >(cat > d) <<< e",
    "here-document": "cat > here <<X\nhere\nX\ngrep here here",
    "temporary": 'f=$(mktemp) && d=$(mktemp -d) && rmdir "$d" && rm "$f" && test "${f%/*}" = "$TMPDIR"',
    "sort": "seq 30000 | sort -R -S 100k | sort -n -S 100k | tail -1 | grep 30000",
    "move": "mkdir a b && echo 1 > a/f && mv a/f b/g && ln b/g a/h && ln -s a l && cat l/h && rm -r a b l",
    "background": "sleep 30 & kill $! && ! wait $!",
    "git": "git init -q . && echo a > a && git add a && git -c user.name=n -c user.email=e@f commit -qm m && git log",
    "make": "printf 'x:\\n\\techo made > x\\n' > Makefile && make && cat x",
    "compiler": "echo 'int main(){return 0;}' > x.c && cc -o x x.c && ./x",
    "reading": "ls / ~ /proc/self > list && cat ~/notes ~/dots/open /etc/passwd",
}


@pytest.mark.parametrize("name", WORK)
def test_ordinary_work_goes_on(do, name):
    missing = subprocess.run(["bash", "-c", "type git make cc"], capture_output=True).returncode
    if missing and name in ("git", "make", "compiler"):
        pytest.skip("a program is not here")
    assert do(WORK[name]).startswith("exit code 0\n")


def test_python_starts_processes_and_has_locks(do):
    (do.space.directory / "pool.py").write_text(
        "import multiprocessing as m\nif __name__ == '__main__':\n"
        "    for how in ('fork', 'spawn', 'forkserver'):\n"
        "        with m.get_context(how).Pool(1) as pool:\n            print(pool.map(abs, [-1]))\n"
    )
    assert do(f"'{sys.executable}' pool.py").startswith("exit code 0\n[1]\n[1]\n[1]\n")


def test_a_virtual_environment_can_be_made(do):
    made = do(f"'{sys.executable}' -m venv --without-pip v && v/bin/python -c 'import sys; print(sys.prefix)'")
    assert made == f"exit code 0\n{do.space.directory}/v\n"


def test_file_tools_work_in_the_working_directory(do):
    assert do("a/b", "one", tool="write_to_file") == "Wrote 3 bytes to a/b"
    assert do("a/b", "one", "two", tool="edit_file").startswith("Replaced 1 place")
    assert do("a/b", tool="read_from_file") == "two"
    assert do("a", tool="list_files") == "b"


def test_a_command_ends_what_one_before_it_started(do):
    pid = do("sleep 30 > log 2>&1 & echo $!").splitlines()[1]
    assert do(f"kill {pid} && echo ended") == "exit code 0\nended\n"


def test_a_command_can_be_ended(do):
    running = do.sandbox.run(do.space.run_shell_command, "trap '' TERM; echo $$ > pid; while :; do sleep 0.1; done", 60)
    do.sandbox.run(running.send, None)
    while not (pid := do.space.directory / "pid").exists() or not pid.read_text().strip():
        do.sandbox.run(running.send, "")
    with pytest.raises(StopIteration) as end:
        do.sandbox.run(running.send, "stopped by the user")
    assert end.value.value.startswith("stopped by the user\n")
    assert not Path("/proc", pid.read_text().strip()).exists()


# ------------------------------------------------------------------------------------------------ what is refused


WRITES = {
    "append": "open(A[0], 'a')",
    "truncate": "os.truncate(A[0], 0)",
    "create": "open(A[0] + '2', 'x')",
    "remove": "os.unlink(A[0])",
    "directory": "os.mkdir(A[0] + '2')",
    "through a link": "os.symlink(A[0], 'link'); open('link', 'a')",
    "relative": "open(os.path.relpath(A[0]), 'a')",
    "through /proc/self/root": "open('/proc/self/root' + A[0], 'a')",
    "through /proc of the agent": "open(f'/proc/{os.getppid()}/root' + A[0], 'a')",
    "hard link in": "os.link(A[0], 'mine'); open('mine', 'a')",
    "hard link out": "open('mine', 'w'); os.link('mine', A[0] + '2')",
    "move in": "os.rename(A[0], 'mine')",
    "move out": "open('mine', 'w'); os.replace('mine', A[0])",
    "exchange": "open('mine', 'w')\n"
    "sys.exit(libc.renameat2(-100, b'mine', -100, A[0].encode(), 2) and 'PermissionError')",
    "the directory itself": "os.rename(os.getcwd(), os.getcwd() + '2')",
    "a mount": "sys.exit(libc.mount(b'/', os.getcwd().encode(), None, 4096, None) and 'PermissionError')",
    "a mount in a namespace of its own": "libc.unshare(0x10020000) == 0 or sys.exit('PermissionError')\n"
    "sys.exit(libc.mount(b'/', os.getcwd().encode(), None, 4096, None) and 'PermissionError')",
    "a copy of a mount": "d = libc.syscall(428, -100, os.path.dirname(A[0]).encode(), 1)\n"
    "d < 0 and sys.exit('PermissionError'); os.open('victim', os.O_RDWR, dir_fd=d)",
    "a device of its own": "os.mknod('disk', 0o060600, os.makedev(7, 0)); open('disk', 'rb')",
    "its own root": "os.chroot('/'); open(A[0], 'a')",
    "kernel settings": "open('/proc/sys/kernel/core_pattern', 'w')",
    "a terminal": "os.openpty()",
    "a device": "open('/dev/ptmx', 'rb')",
}


@pytest.mark.parametrize("name", WRITES)
def test_nothing_is_written_outside(do, outside, name):
    before = [(path, path.read_text()) for path in outside.iterdir()]
    assert attempt(do, WRITES[name].replace("'", '"'), outside / "victim") in ("PermissionError", "OSError")
    assert [(path, path.read_text()) for path in outside.iterdir()] == before
    assert do.space.directory.is_dir()


@pytest.mark.parametrize("name", [".ssh/key", ".ssh/linked", ".aws/credentials", "dots/aws/credentials", ".netrc"])
def test_secrets_cannot_be_read(do, user, name):
    assert "SECRET" not in do(
        f"cat ~/{name}; cat /proc/self/root{user}/{name}; cp -r ~/{name} x; cat x; ls -l ~/{name}"
    )
    with pytest.raises(PermissionError):
        do(f"~/{name}", tool="read_from_file")


def test_the_state_of_the_agent_cannot_be_read_or_written(do, home):
    (home / "x" / "sessions").mkdir(parents=True)
    (home / "x" / "sessions" / "1.jsonl").write_text("SECRET")
    result = do(f"cat {home}/x/sessions/*; echo more >> {home}/x/sessions/1.jsonl; touch {home}/y; echo end")
    assert "SECRET" not in result and result.count("Permission denied") == 3


@pytest.mark.parametrize("tool, more", [("write_to_file", ["x"]), ("edit_file", ["data", "x"])])
@pytest.mark.parametrize("name", ["{}/victim", "link", "../{}/victim"])
def test_file_tools_write_nothing_outside(do, outside, tool, more, name):
    (do.space.directory / "link").symlink_to(outside / "victim")
    with pytest.raises(PermissionError):
        do(
            name.format(outside if name[0] == "{" else os.path.relpath(outside, do.space.directory.parent)),
            *more,
            tool=tool,
        )
    assert (outside / "victim").read_text() == "data\n"
    assert os.listdir(outside) == ["victim"]


PRIES = {
    "memory": "open(f'/proc/{pid}/mem', 'rb')",
    "environment": "print(open(f'/proc/{pid}/environ').read())",
    "trace": "sys.exit(libc.ptrace(0x4206, pid, None, None) and 'PermissionError')",
    "root": "os.listdir(f'/proc/{pid}/root')",
    "descriptor": "sys.exit(libc.syscall(438, os.pidfd_open(A and os.getppid()), 1, 0) < 0 and 'PermissionError')",
}


@pytest.mark.parametrize("name", PRIES)
def test_no_thread_of_the_agent_is_pried_into(do, name):
    """Also not the one that is bound like the commands, which has the memory of all."""
    code = "for pid in map(int, os.listdir(f'/proc/{os.getppid()}/task')):\n    try: " + PRIES[name] + "\n"
    code += "    except (PermissionError, SystemExit) as refused: print('no' if str(refused) != '0' else 'DONE')\n"
    output = do(python(code.replace("'", '"'), "x")).split("\n")[1:]
    assert len(output) > 2 and set(output) == {"no", ""}


@pytest.mark.skipif(VERSION < 6, reason="needs Linux 6.12")
def test_other_programs_are_not_ended(do):
    with subprocess.Popen(["sleep", "30"]) as other:
        result = do(f"kill {other.pid}; kill -0 $PPID; kill -0 -- -{os.getpgrp()}")
        assert result.count("not permitted") == 3 and other.poll() is None
        other.kill()


@pytest.mark.skipif(VERSION < 6, reason="needs Linux 6.12")
def test_abstract_sockets_of_others_are_out_of_reach(do):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name := f"\0tinyagent-{os.getpid()}")
        server.listen()
        code = "s = socket.socket(socket.AF_UNIX); s.connect(chr(0) + A[0])"
        assert attempt(do, code, name[1:]) == "PermissionError"


def test_no_program_has_more_rights_than_it(do):
    status = do("grep -E 'NoNewPrivs|CapEff|CapPrm' /proc/self/status")
    assert "NoNewPrivs:\t1" in status
    for granted in re.findall(r"Cap\w+:\t(\w+)", status):
        assert int(granted, 16) & ~0x404FB == 0


def test_no_descriptor_of_the_agent_is_inherited(do, outside):
    with open(outside / "victim") as file:
        os.set_inheritable(file.fileno(), True)
        listed = do("ls -l /proc/self/fd")
        assert listed.startswith("exit code 0\n") and "victim" not in listed


NETWORK = {
    "connect": "socket.create_connection((host, int(A[0])))",
    "another protocol for it": "socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262).connect((host, int(A[0])))",
    "connect by sending": "socket.socket().sendto(b'x', 0x20000000, (host, int(A[0])))",
    "bind": "socket.socket().bind((host, 0))",
    "listen": "socket.socket().listen()",
    "datagram": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', (host, int(A[0])))",
    "io_uring": "b = ctypes.create_string_buffer(256)\n"
    "sys.exit('PermissionError' if libc.syscall(425, 1, b) < 0 else 'made')",
    "the call by its x32 number": "made = libc.syscall((1 << 30) + 41, 2, 1, 0)\n"
    "sys.exit('PermissionError' if (made, ctypes.get_errno()) == (-1, 13) else 'let through')",
}


@pytest.mark.skipif(os.uname().machine not in ("x86_64", "aarch64"), reason="its system calls are not known")
@pytest.mark.parametrize("name", NETWORK)
def test_offline_there_is_no_network(make, name):
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = "host = '127.0.0.1'\n" + NETWORK[name]
        assert attempt(make("offline"), code.replace("'", '"'), server.getsockname()[1]) == "PermissionError"


def test_only_offline_is_offline(make):
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = f'socket.create_connection(("127.0.0.1", {server.getsockname()[1]})); print("connected")'
        assert attempt(make("on"), code) == "connected"
        offline = make("offline")
    assert attempt(offline, 'socket.socketpair(); socket.socket(socket.AF_UNIX).bind("s"); print("local")') == "local"


# --------------------------------------------------------------------------------------------------------- the rest


def test_what_stands_beside_the_hidden_is_granted_and_no_link(tmp_path):
    for name in ("a/b/secret", "a/b/open", "a/c", "d"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to("a/b/secret")
    hidden = {tmp_path / "a/b/secret", tmp_path / "a/not/there"}
    assert set(all_but(hidden, tmp_path)) == {tmp_path / "d", tmp_path / "a/c", tmp_path / "a/b/open"}


def test_a_denial_is_told_from_another_failure(do, outside):
    assert HINT in do(f"echo x > {outside}/new")
    assert do(f"echo x > {outside}/new; true").startswith("exit code 0\n") and HINT not in do(
        f"touch {outside}/x; true"
    )
    assert HINT not in do("exit 3") and HINT not in do("no-such-command")


def test_the_paths_are_checked_where_no_kernel_does(do, outside, user):
    sandbox, work = do.sandbox, do.space.directory
    sandbox.prefix = ["as on macOS"]
    (work / "link").symlink_to(outside)
    for path in (work / "new" / "file", work / "..." / "x", sandbox.private / "tmp" / "x"):
        sandbox.check(path, writing=True)
    sandbox.check(outside / "victim")
    for path in (outside / "new", work / "link" / "new", work / ".." / "x", sandbox.private / "output" / "x"):
        with pytest.raises(PermissionError):
            sandbox.check(path, writing=True)
    for path in (user / ".ssh" / "key", user / ".aws" / "new", user / ".netrc"):
        with pytest.raises(PermissionError):
            sandbox.check(path)


def test_the_profile_of_macos_is_balanced_and_quoted(do):
    do.sandbox.writable = [Path('/w "é" (')]
    assert r'(subpath "/w \"é\" (")' in do.sandbox.profile()
    profile = re.sub(r'#?"(\\.|[^"\\])*"', "", do.sandbox.profile())
    assert profile.count("(") == profile.count(")") and '"' not in profile


def test_a_turn_within_it(run, workspace, outside, user, home):
    (workspace / "spec.txt").symlink_to(user / ".ssh" / "key")
    script = (
        calls(("run_shell_command", {"command": f"echo $TMPDIR; seq 9000; seq 9000; echo x > {outside}/new"})),
        calls(("write_to_file", {"path": f"{outside}/victim", "content": "x"})),
        say("It cannot be done."),
    )
    with Server(*script) as server:
        options = "--start_dir", workspace, "--sandbox", "--context", 8000, "--json"
        ended = run("do it", *options, server=server)
        assert "SECRET" not in json.dumps([request.body for request in server.requests])
    events = [json.loads(line) for line in ended.stdout.splitlines()]
    shell, written = (event["text"] for event in events if event["type"] == "tool_returned")
    assert HINT in shell and HINT in written and written.startswith("error: [Errno 13] Permission denied")
    private = Path(shell.split("\n")[1]).parent
    assert private.name.startswith("tinyagent-") and f"the whole is in {private}/output/" in shell
    assert not private.exists() and os.listdir(outside) == ["victim"]


def test_the_whole_output_can_be_read_back(do):
    path = re.search(r"the whole is in (\S+) \.\.\.", do("seq 9000"))[1]
    assert do(path, 9000, tool="read_from_file").startswith("9000\n")


def test_two_interrupts_end_the_command_and_the_program(start, workspace, user):
    with Server(calls(("run_shell_command", {"command": "echo $$ > pid; sleep 60"}))) as server:
        process = start("go", "--start_dir", workspace, "--sandbox", server=server)
        while not (workspace / "pid").exists() or not (workspace / "pid").read_text().strip():
            time.sleep(0.02)
        process.send_signal(2)
        process.send_signal(2)
        assert process.wait(10) == 130
    assert not Path("/proc", (workspace / "pid").read_text().strip()).exists()


@pytest.mark.parametrize("place", ["home", "user"])
def test_it_does_not_work_in_what_it_should_hide(run, place, home, user):
    ended = run("x", "--sandbox=on", "--start_dir", {"home": home, "user": user}[place], "--base_url", "http://[::1]:1")
    assert ended.returncode == 2 and ended.stdout == ""
    assert "--sandbox cannot hide" in ended.stderr and len(ended.stderr.splitlines()) == 1


def test_it_goes_on_within_it(run, workspace, user):
    with Server(say("Done.")) as server:
        ended = run("go", "--start_dir", workspace, "--sandbox=offline", server=server)
    assert ended.returncode == 0 and "--sandbox=offline" in ended.stderr.splitlines()[-1]


@pytest.mark.parametrize("place", ["{}/bin", "bin", "."], ids=["absolute", "relative", "here"])
def test_a_program_that_commands_can_write_is_not_run_outside_it(run, workspace, outside, user, monkeypatch, place):
    (workspace / "bin").mkdir()
    for git in (workspace / "bin" / "git", workspace / "git"):
        git.write_text(f'#!/bin/sh\necho ran > {outside}/ran\nexec /usr/bin/git "$@"\n')
        git.chmod(0o755)
    monkeypatch.chdir(workspace)
    path = f"{place.format(workspace)}:{os.environ['PATH']}"
    with Server(calls(("run_shell_command", {"command": "echo hello > a"})), say("Done.")) as server:
        ended = run("go", "--start_dir", workspace, "--sandbox", server=server, env={"PATH": path})
    assert ended.returncode == 0 and (workspace / "a").exists() and not (outside / "ran").exists()


def test_modules_that_commands_can_write_are_told(run, workspace, user):
    (workspace / "src").mkdir()
    with Server(say("Done.")) as server:
        env = {"PYTHONPATH": str(workspace / "src")}
        ended = run("go", "--start_dir", workspace, "--sandbox", server=server, env=env)
    assert ended.returncode == 0 and ended.stderr.count("! --sandbox does not keep commands from ") == 1
    assert "the agent's own program" in ended.stderr


@pytest.mark.skipif(VERSION > 8, reason="this kernel lacks nothing")
def test_what_the_kernel_lacks_is_said_once(run, workspace, user):
    with Server(say("Done.")) as server:
        ended = run("go", "--start_dir", workspace, "--sandbox", server=server)
    assert ended.stderr.count("! --sandbox does not keep commands from ") == 1
