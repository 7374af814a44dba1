"""Snapshots and what is put back from them: real git, real files, a test for each property."""

import hashlib
import os
import socket
import stat
import subprocess
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from conftest import git, somebody, within
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyagent import Snapshots


@pytest.fixture
def space(workspace, home):
    """Snapshots of an empty directory."""
    return Snapshots(workspace, home / "work", "one")


def fill(directory, **files):
    """Writes these files; `__` in a name is a slash, and None removes one."""
    for name, content in files.items():
        path = Path(directory, name.replace("__", "/"))
        if content is None:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def shell(directory, command):
    subprocess.run(command, shell=True, cwd=directory, check=True)


def tree(directory, below=b""):
    """Every file and link below a directory: name -> what it is."""
    found = {}
    for folder, folders, names in os.walk(os.fsencode(directory) + below):
        for name in names + [name for name in folders if os.path.islink(os.path.join(folder, name))]:
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            content = os.readlink(path) if stat.S_ISLNK(mode) else b""
            if stat.S_ISREG(mode):
                with open(path, "rb") as file:
                    content = file.read()
            found[os.path.relpath(path, os.fsencode(directory))] = (stat.S_IFMT(mode), mode & 0o100, content)
    return found


def taken(space, limit=30.0):
    """A snapshot, which has to succeed."""
    made = space.take(limit)
    assert made, space.off
    return made


def left_of(fates):
    """The names of what is left as it is, where a snapshot was put back."""
    return [name for name, fate in fates.items() if fate == "left as it is"]


def undone(space, target):
    """Puts a snapshot back, the whole of it; gives back the snapshot of what was there before."""
    here = taken(space)
    assert left_of(space.restore(here, target)) == []
    return here


# ------------------------------------------------------------------------------------------------------ what comes back

BEFORE = """
mkdir -p src/deep folder link-target; printf 'a\\r\\nb\\n\\r' > src/crlf; printf '\\0\\377\\n' > src/deep/binary
: > empty; printf run > tool; chmod 755 tool; ln -s src/crlf link; ln -s nowhere broken; ln -s link-target to-folder
printf 1 > folder/file; printf f > was-file; mkdir was-folder; printf x > was-folder/x; printf y > was-folder/y
printf odd > "$(printf 'new\\nline')"; printf latin > "$(printf 'caf\\351')"; printf q > '"quoted" \\ *?[a]';
printf d > -dash
"""
CHANGES = {
    "everything is removed": "rm -rf -- * .[a-z]*",
    "nothing is changed": "true",
    "a directory is removed": "rm -rf src",
    "files are changed": "for f in src/crlf src/deep/binary empty tool -dash; do printf changed > ./$f; done",
    "files are as long as before": "printf 2 > folder/file; printf g > was-file",
    "new files, also in new directories": "printf n > new; mkdir -p a/b/c; printf n > a/b/c/new; printf n > src/new",
    "a file becomes a directory": "rm was-file; mkdir -p was-file/in; printf x > was-file/in/x; printf y > was-file/y",
    "a directory becomes a file": "rm -rf src; printf file > src",
    "a directory becomes a link": "rm -rf was-folder; ln -s src was-folder",
    "a link becomes a directory": "rm to-folder link; mkdir to-folder link; printf x > to-folder/x; printf x > link/x",
    "links": "ln -sf elsewhere link; rm broken; printf file > broken; rm tool; ln -s empty tool",
    "executable or not": "chmod 644 tool; chmod 755 empty",
    "moves": "mv src source; mv folder src; mv was-file was-folder/z",
    "odd names": "rm -- new* caf* -dash; printf 2 > '\"quoted\" \\ *?[a]'; printf x > \"$(printf 'a\\tb\\n')\"",
}


@pytest.mark.parametrize("command", CHANGES.values(), ids=CHANGES)
def test_what_was_there_comes_back_and_goes_again(space, command):
    shell(space.directory, BEFORE)
    before, target = tree(space.directory), taken(space)
    shell(space.directory, command)
    after = tree(space.directory)
    here = undone(space, target)
    assert tree(space.directory) == before
    assert undone(space, here) == target and tree(space.directory) == after
    undone(space, target)
    assert tree(space.directory) == before


NAMES = st.sampled_from(["a", "b", "a/a", "a/b", "b/a", "b/b/a", "a/b/a"])
STATES = st.dictionaries(NAMES, st.sampled_from([b"", b"1", b"2", b"1\r\n", "->"]), max_size=5)


def make(directory, state):
    """Makes these the files of a directory, where they can stand together."""
    shell(directory, "rm -rf -- *")
    for name, content in state.items():
        path = directory / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to("b") if content == "->" else path.write_bytes(content)
        except OSError:
            continue


@given(st.lists(STATES, min_size=2, max_size=4), st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None, database=None, derandomize=True)
def test_any_state_can_be_had_again_from_any_other(states, random):
    with TemporaryDirectory() as folder:
        Path(folder, "work").mkdir()
        space, known = Snapshots(Path(folder, "work").resolve(), Path(folder, "home", "w"), "one"), {}
        for state in states:
            make(space.directory, state)
            known[taken(space)] = tree(space.directory)
        for target in random.choices(list(known), k=4):
            undone(space, target)
            assert tree(space.directory) == known[target]


def test_names_that_git_refuses_elsewhere(space):
    fill(space.directory, **{"git~1": "1", "a\\.git__x": "1", "a\\b": "1", ".git ": "1", "b": "1"})
    before, target = tree(space.directory), taken(space)
    fill(space.directory, **{"git~1": "2", "a\\.git__x": None, "a\\b": "2", ".git ": "2", "b": "2"})
    undone(space, target)
    assert tree(space.directory) == before


def test_several_turns_back_and_forth(space):
    ids, states = [], []
    for number in range(4):
        fill(space.directory, **{f"f{number}": str(number), "all": str(number)})
        ids, states = [*ids, taken(space)], [*states, tree(space.directory)]
    for number in (3, 2, 1, 0, 1, 2, 3, 0, 3):
        undone(space, ids[number])
        assert tree(space.directory) == states[number]
        assert taken(space) == ids[number]  # the same files, the same id


def test_a_new_agent_can_put_back_what_an_older_one_stored(space, home):
    fill(space.directory, a="1")
    target = taken(space)
    fill(space.directory, a="2", b="2")
    undone(Snapshots(space.directory, home / "work", "two"), target)
    assert list(tree(space.directory)) == [b"a"]


def test_permissions_stay_as_they_are_now(space):
    fill(space.directory, secret="1", tool="1")
    target = taken(space)
    fill(space.directory, secret="2", tool="2")
    (space.directory / "secret").chmod(0o600)
    (space.directory / "tool").chmod(0o700)
    undone(space, target)
    assert stat.S_IMODE((space.directory / "secret").stat().st_mode) == 0o600
    assert not (space.directory / "tool").stat().st_mode & 0o111  # it was not to be executed


def test_a_directory_that_someone_is_in_is_not_made_anew(space):
    fill(space.directory, sub__only="1")
    target, number = taken(space), (space.directory / "sub").stat().st_ino
    fill(space.directory, sub__only="2")
    undone(space, target)
    assert (space.directory / "sub").stat().st_ino == number


# ------------------------------------------------------------------------------------------- what must not be converted

ATTRIBUTES = "* text eol=crlf ident filter=shout export-ignore\n*.utf working-tree-encoding=UTF-16\n*.c crlf\n"


@pytest.fixture
def nasty(tmp_path_factory, monkeypatch):
    """A user whose settings would change what git stores, or would leave a trace."""
    place = tmp_path_factory.mktemp("user")
    (place / "ignore").write_text("*.txt\n")
    (place / "attributes").write_text(ATTRIBUTES)
    trace = f"touch {place}/trace"
    (place / ".gitconfig").write_text(f"""
[core]
  autocrlf = true\n  safecrlf = true\n  excludesFile = {place}/ignore\n  attributesFile = {place}/attributes
  hooksPath = {place}\n  fsmonitor = {trace}\n  fileMode = false\n  symlinks = false\n  bare = true
[commit]\n  gpgSign = true
[filter "shout"]\n  clean = "{trace}; tr a-z A-Z"\n  smudge = "{trace}; cat"\n  required = true
[diff]\n  external = {trace}\n  noprefix = true\n[color]\n  ui = always\n[user]\n  useConfigOnly = true
""")
    for name in ("post-index-change", "post-checkout", "pre-commit"):
        (place / name).write_text(f"#!/bin/sh\n{trace}\n")
        (place / name).chmod(0o755)
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(place))
    for name in ("DIR", "WORK_TREE", "INDEX_FILE", "OBJECT_DIRECTORY", "CEILING_DIRECTORIES", "COMMON_DIR"):
        monkeypatch.setenv(f"GIT_{name}", "/nowhere")
    monkeypatch.setenv("GIT_LITERAL_PATHSPECS", "1")
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", trace)
    return place


def test_neither_settings_nor_attributes_change_what_is_stored(space, nasty):
    contents = {"crlf": "a\r\nb\n", "t.txt": "x\ny\r\n", "a.utf": "\ufeffplain", "id.c": "$Id$ $Id: 1 $\r\n"}
    fill(
        space.directory, **contents, **{".gitattributes": ATTRIBUTES, "sub__.gitattributes": ATTRIBUTES, "sub__f": "\r"}
    )
    shell(space.directory, "printf x > run; chmod 755 run; ln -s run link")
    before, target = tree(space.directory), taken(space)
    shell(space.directory, "rm -rf sub *; printf 'new\r\n' > t.txt")
    after, here = tree(space.directory), undone(space, target)
    assert tree(space.directory) == before
    text = space.changes(target, here)
    assert "--- a/t.txt" in text and "+new\r\n" in text and "\x1b" not in text
    undone(space, here)
    assert tree(space.directory) == after
    assert not (nasty / "trace").exists()


# --------------------------------------------------------------------------------------------- what must not be touched


def repository(directory):
    """Makes it a repository with a commit, something staged and a change."""
    git(directory, "init", "-q", ".")
    fill(directory, a="1", b="1", **{".gitignore": "*.log\nbuild/\n"})
    git(directory, "add", ".")
    git(directory, "commit", "-q", "-m", "first")
    fill(directory, a="2", b="2", new="n")
    git(directory, "add", "a")


def test_the_users_repository_is_not_touched(space):
    repository(space.directory)
    fill(space.directory, **{".git__index.lock": "", ".git__HEAD.lock": ""})
    before = tree(space.directory, b"/.git")
    times = {name: os.lstat(os.path.join(os.fsencode(space.directory), name)).st_mtime_ns for name in before}
    target = taken(space)
    fill(space.directory, a="3", c="3", b=None)
    space.changes(target, undone(space, target))
    assert tree(space.directory, b"/.git") == before
    assert {n: os.lstat(os.path.join(os.fsencode(space.directory), n)).st_mtime_ns for n in before} == times
    for lock in ("index.lock", "HEAD.lock"):
        (space.directory / ".git" / lock).unlink()
    assert git(space.directory, "status", "--porcelain").split("\n") == ["M  a", " M b", "?? new", ""]


def test_what_is_ignored_is_neither_stored_nor_removed(space):
    repository(space.directory)
    fill(space.directory, **{".git__info__exclude": "/private*\n", "x.log": "1", "private": "1", "build__out": "1"})
    target = taken(space)
    fill(
        space.directory, **{"x.log": "2", "private": "2", "build__out": "2", "build__new": "2", "y.log": "2", "a": "4"}
    )
    undone(space, target)
    told = {
        name: (space.directory / name).read_text() for name in ("x.log", "private", "build/out", "build/new", "y.log")
    }
    assert set(told.values()) == {"2"} and (space.directory / "a").read_text() == "2"


@pytest.mark.parametrize("how", [{".gitignore": None}, {".gitignore": "nothing\n"}], ids=["removed", "rewritten"])
def test_what_was_ignored_stays_when_the_rules_come_back(space, how):
    fill(space.directory, **{".gitignore": ".env\ndata/\n", ".env": "key", "data__1": "1", "a": "1"})
    target = taken(space)
    fill(space.directory, **how, b="2")
    before = tree(space.directory)
    here = taken(space)
    assert left_of(space.restore(here, target)) == [".env", "data/1"]
    assert set(tree(space.directory)) == {b".gitignore", b".env", b"data/1", b"a"}
    undone(space, here)
    assert tree(space.directory) == before


def test_new_rules_do_not_keep_what_was_stored_before_them(space):
    fill(space.directory, a="1")
    target = taken(space)
    fill(space.directory, **{"x.log": "1"})
    taken(space)
    fill(space.directory, **{".gitignore": "*.log\n"})
    undone(space, target)
    assert list(tree(space.directory)) == [b"a"]


def test_rules_of_the_repository_around_it_hold(home, workspace):
    git(workspace, "init", "-q", ".")
    fill(workspace, **{".gitignore": "*\n*.log\nnode_modules/\n/anchored\n", "sub__x.log": "1", "sub__a": "1"})
    fill(workspace, sub__node_modules__m="1", sub__anchored="1")
    space = Snapshots(workspace / "sub", home / "work", "one")
    target = taken(space)
    shell(workspace / "sub", "rm -rf *; printf 2 > ../outside")
    undone(space, target)
    assert set(tree(workspace / "sub")) == {b"a", b"anchored"}
    assert (workspace / "outside").read_text() == "2"


def test_repositories_within_are_files_like_others(space):
    fill(space.directory, full__a="1", full__inner__b="1", bare__c="1", a="1")
    for name in ("full", "full/inner", "bare"):
        git(space.directory / name, "init", "-q", ".")
    git(space.directory / "full", "add", "a")
    git(space.directory / "full", "commit", "-q", "-m", "x")
    own = tree(space.directory, b"/full/.git")
    target = taken(space)
    assert taken(space) == target
    fill(space.directory, full__a="2", full__inner__b=None, bare__c="2", bare__new="2")
    undone(space, target)
    files = {name: told for name, told in tree(space.directory).items() if b".git/" not in name}
    assert {name: told[2] for name, told in files.items()} == dict.fromkeys(
        [b"full/a", b"full/inner/b", b"bare/c", b"a"], b"1"
    )
    assert tree(space.directory, b"/full/.git") == own


@pytest.mark.parametrize("name", ["plain", "a\nb", 'quo"te', "\\n", "ünï", "-dash", "tab\t", "caf\udce9"], ids=ascii)
def test_no_program_that_a_repository_within_names_is_run(space, tmp_path, name):
    inner = space.directory / name
    fill(inner, f="1")
    git(inner, "init", "-q", ".")
    git(inner, "add", "f")
    git(inner, "commit", "-q", "-m", "x")
    git(inner, "config", "core.fsmonitor", f"touch '{tmp_path}/trace'; true")
    before, target = tree(space.directory), taken(space)
    fill(inner, f="2")
    assert "\n+2" in space.changes(target, taken(space)) and not (tmp_path / "trace").exists()
    undone(space, target)
    assert tree(space.directory) == before and not (tmp_path / "trace").exists()


def test_repositories_in_repositories_in_repositories(space):
    inner = space.directory
    for number in range(12):
        inner = inner / f"r{number}"
        fill(inner, f="1")
        git(inner, "init", "-q", ".")
        git(inner, "add", "f")
        git(inner, "commit", "-q", "-m", "x")
    with within(20):
        target = taken(space)
    fill(inner, f="2")
    undone(space, target)
    assert (inner / "f").read_text() == "1"


def test_what_is_not_stored_is_left_where_it_is_in_the_way(space):
    fill(space.directory, **{"env": "old", "place": "1", "b": "1"})
    target = taken(space)
    fill(space.directory, env=None, place=None)
    taken(space)
    fill(space.directory, **{".gitignore": "env\nhidden\n", "env": "secret", "place__hidden": "1", "b": "2"})
    git(space.directory / "place", "init", "-q", ".")
    assert left_of(space.restore(taken(space), target)) == ["env", "place"]
    assert (space.directory / "env").read_text() == "secret" and (space.directory / "place/hidden").read_text() == "1"
    assert (space.directory / "place/.git/HEAD").exists() and (space.directory / "b").read_text() == "1"


def test_what_changes_after_the_snapshot_is_left(space):
    fill(space.directory, a="1", b="1", c="1")
    target = taken(space)
    fill(space.directory, a="2", b="2", c="2", d="2")
    here = taken(space)
    fill(space.directory, a="mine", d="mine", e="mine", b=None)
    assert space.restore(here, target) == {"a": "left as it is", "b": "put back", "c": "put back", "d": "left as it is"}
    told = {name.decode(): told[2] for name, told in tree(space.directory).items()}
    assert told == {"a": b"mine", "b": b"1", "c": b"1", "d": b"mine", "e": b"mine"}


# ----------------------------------------------------------------------------------------------- what must not break it


def test_pipes_sockets_and_devices(space):
    fill(space.directory, a="1", was="1")
    taken(space)
    os.mkfifo(space.directory / "pipe")
    (space.directory / "was").unlink()
    os.mkfifo(space.directory / "was")
    here = os.getcwd()
    os.chdir(space.directory)  # the name of a socket must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        os.chdir(here)
        target = taken(space)
        fill(space.directory, a="2")
        assert left_of(space.restore(taken(space), target)) == ["was"]  # nobody knows any more what it was
    assert (space.directory / "a").read_text() == "1"
    assert all(stat.S_ISFIFO((space.directory / name).stat().st_mode) for name in ("pipe", "was"))


def test_what_cannot_be_read_or_written_is_left():
    with TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        with somebody():
            space = Snapshots(Path(folder, "work").resolve(), Path(folder, "home", "w"), "one")
            fill(space.directory, a="1", new="1", closed__b="1", fixed__c="1", fixed__d="1")
            target = taken(space)
            fill(space.directory, a="2", new="2", closed__b="2", closed__e="2", fixed__c="2", unread="2", z="2")
            for name, mode in {"unread": 0, "new": 0, "closed": 0, "fixed": 0o500}.items():
                (space.directory / name).chmod(mode)
            assert left_of(space.restore(taken(space), target)) == ["fixed/c", "new"]
            for name, mode in {"unread": 0o600, "new": 0o600, "closed": 0o700, "fixed": 0o700}.items():
                (space.directory / name).chmod(mode)
            told = {name.decode(): told[2] for name, told in tree(space.directory).items()}
    left = {"new": b"2", "closed/b": b"2", "closed/e": b"2", "fixed/c": b"2", "unread": b"2"}
    assert told == {"a": b"1", "fixed/d": b"1", **left}


def test_files_that_change_and_vanish_all_the_time(space):
    stopped = threading.Event()

    def disturb():
        number = 0
        while not stopped.is_set():
            number += 1
            path = space.directory / f"f{number % 50}"
            path.write_bytes(b"x" * (number * 977 % 100_000))
            if number % 3 == 0:
                path.unlink()
            time.sleep(0.001)

    fill(space.directory, steady="1")
    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        made = [space.take(30) for _ in range(10)]
    finally:
        stopped.set()
        thread.join()
    assert any(made), space.off
    before, target = tree(space.directory), taken(space)
    shell(space.directory, "rm -rf *")
    undone(space, target)
    assert tree(space.directory) == before


def test_two_agents_at_once(workspace, home):
    spaces = [Snapshots(workspace, home / "work", name) for name in ("one", "two", "three")]
    fill(workspace, **{f"d{n % 7}__f{n}": str(n) for n in range(200)})
    found = []

    def work(space):
        for number in range(6):
            fill(workspace, **{f"of-{space.index.name}": str(number)})
            found.append((space.take(30), space.off))

    threads = [threading.Thread(target=work, args=(space,)) for space in spaces]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [off for made, off in found if not made] == []
    before, target = tree(workspace), taken(spaces[0])
    assert taken(spaces[1]) == target
    shell(workspace, "rm -rf *")
    undone(spaces[2], target)
    assert tree(workspace) == before
    assert sorted(p.name for p in spaces[0].store.iterdir() if "index" in p.name) == ["index"]


# ------------------------------------------------------------------------------------------------- when there is none


def test_a_home_is_not_stored(home, workspace, monkeypatch):
    monkeypatch.setenv("HOME", str(workspace / "me"))
    for directory in (workspace, workspace / "me", Path("/")):
        space = Snapshots(directory, home / "work", "one")
        assert space.take() == "" and space.off == f"{directory} is, or holds, a home directory"
    assert not (home / "work").exists()


def test_the_state_is_not_stored_when_it_is_in_the_directory(workspace):
    fill(workspace, a="1", state__other__sessions__x="1")
    space = Snapshots(workspace, workspace / "state" / "work", "one")
    target = taken(space)
    fill(workspace, a="2", state__other__sessions__x="2")
    assert taken(space) != target and "state" not in space.changes(target, taken(space))
    undone(space, target)
    assert (workspace / "state/other/sessions/x").read_text() == "2" and (workspace / "a").read_text() == "1"
    assert Snapshots(workspace, workspace / "work", "one").take() == ""


def test_without_git(space, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert space.take() == "" and space.off == "there is no git"


def test_where_the_state_cannot_be_written(workspace, home):
    (home / "work").write_text("a file")
    space = Snapshots(workspace, home / "work", "one")
    assert space.take() == "" and "exists" in space.off and "\n" not in space.off


def test_one_that_takes_too_long_is_given_up(space):
    fill(space.directory, **{f"f{n}": os.urandom(1_000_000) for n in range(40)})
    assert space.take(0.3) == "" and space.off == f"{space.directory} is too large to be stored in 0.3 seconds"
    assert [path.name for path in space.store.rglob("*") if "lock" in path.name or "tmp_" in path.name] == []
    target = taken(space)  # with more time
    fill(space.directory, f1="2")
    undone(space, target)
    assert (space.directory / "f1").stat().st_size == 1_000_000


def test_what_took_too_long_is_not_tried_again(space):
    fill(space.directory, **{f"f{n}": os.urandom(1_000_000) for n in range(40)})
    assert space.take(0.3) == ""
    shell(space.directory, "rm *")
    assert space.take(0.3) == "" and "too large" in space.off
    assert taken(space) and taken(space, 20)  # it went well: from now on as before


@pytest.mark.parametrize("damage", [b"", b"DIRC nonsense"])
def test_a_damaged_index_is_made_anew(space, damage):
    fill(space.directory, a="1")
    target = taken(space)
    space.shared.write_bytes(damage)
    (space.store / "index-one.lock").touch()  # of a machine that lost its power
    assert target in (space.take(30), space.take(30))


def test_a_store_that_git_does_not_take_is_told(space):
    taken(space)
    (space.store / "config").write_text("[broken")
    assert space.take() == "" and space.off.startswith("git: ") and "config" in space.off


def test_where_git_can_store_nothing_more_it_is_told(space):
    fill(space.directory, a="1", b="1")
    taken(space)
    for number in range(256):
        folder = space.store / "objects" / f"{number:02x}"
        folder.exists() or folder.touch()
    fill(space.directory, a="2", c="3")
    with within(10):
        assert space.take() == "" and space.off.startswith("git: ") and "\n" not in space.off


def test_a_pipe_in_place_of_rules_blocks_nothing(space):
    fill(space.directory, a="1", **{".git__info__x": ""})
    os.mkfifo(space.directory / ".git" / "info" / "exclude")
    with within(5):
        assert taken(space)


def test_a_snapshot_that_is_gone_changes_nothing(space):
    fill(space.directory, a="1")
    here = taken(space)
    for call in (space.restore, space.changes):
        with pytest.raises(ValueError, match="^the snapshot of the files is not there any more$"):
            call(here, hashlib.sha1(b"no").hexdigest())
    assert taken(space) == here


def test_what_is_old_is_removed_and_what_is_in_use_stays(space, home):
    fill(space.directory, a="old", steady="1" * 99)
    gone = taken(space)
    fill(space.directory, a="1")
    for name in ("a", "steady"):
        os.utime(space.directory / name, (1e9, 1e9))  # not just written: git need not read them again
    first = taken(space)
    for path in space.store.glob("objects/??/*"):
        os.utime(path, (0, 0))
    assert taken(space) == first  # counts as new
    fill(space.directory, a="2")
    last = taken(space)
    taken(Snapshots(space.directory, home / "work", "another"))
    with pytest.raises(ValueError):
        space.changes(last, gone)
    undone(space, first)
    undone(space, last)
    assert (space.directory / "a").read_text() == "2"


def test_nobody_else_can_look_at_it(space):
    taken(space)
    assert stat.S_IMODE(space.store.stat().st_mode) == 0o700


# ----------------------------------------------------------------------------------------------------------- the diff


def test_the_diff_of_two_snapshots(space):
    fill(space.directory, a="1\n", same="1\n")
    first = taken(space)
    fill(space.directory, a="2\n", **{"caf\udce9": "x\n"})
    second = taken(space)
    assert space.changes(first, first) == ""
    assert "-1\n+2\n" in space.changes(first, second) and "same" not in space.changes(first, second)
    assert "+1\n" in space.changes(second, first)


def test_a_long_diff_is_cut_and_begins_with_a_list_of_files(space):
    first = taken(space)
    fill(space.directory, **{f"f{n}": "line\n" * 100 for n in range(30)})
    text = space.changes(first, taken(space), 1_000)
    assert text.lstrip().startswith("f0 ") and "30 files changed, 3000 insertions(+)" in text
    assert text.endswith(" characters in all ...]\n") and len(text) < 6_000
