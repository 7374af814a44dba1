import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TODO = Path("todo.py").resolve()


class Hidden(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.directory = Path(folder.name)

    def todo(self, *words):
        command = [sys.executable, TODO, *words]
        return subprocess.run(command, cwd=self.directory, capture_output=True, text=True, stdin=subprocess.DEVNULL)

    def says(self, words, expected=""):
        done = self.todo(*words)
        self.assertEqual((done.stdout, done.stderr, done.returncode), (expected, "", 0), words)

    def test_a_list(self):
        self.says(["list"])
        self.says(["add", "buy", "bread"], "1\n")
        self.says(["add", "é 'quoted' text"], "2\n")
        self.says(["add", "third"], "3\n")
        self.says(["done", "1"])
        self.says(["remove", "2"])
        self.says(["list"], "1 [x] buy bread\n3 [ ] third\n")

    def test_a_number_is_never_given_again(self):
        self.says(["add", "a"], "1\n")
        self.says(["remove", "1"])
        self.says(["list"])
        self.says(["add", "b"], "2\n")
        self.says(["list"], "2 [ ] b\n")

    def test_what_is_wrong_is_one_line_and_changes_nothing(self):
        self.says(["add", "a"], "1\n")
        before = (self.directory / "todo.json").read_bytes()
        for words in ([], ["add"], ["done"], ["done", "7"], ["remove", "x"], ["remove", "0"], ["grow"]):
            done = self.todo(*words)
            self.assertEqual((done.stdout, done.stderr.count("\n"), done.returncode), ("", 1, 2), words)
            self.assertEqual((self.directory / "todo.json").read_bytes(), before)


unittest.main()
