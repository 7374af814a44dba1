import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TODO = Path(__file__).with_name("todo.py")


class Test(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.directory = folder.name

    def todo(self, *words):
        done = subprocess.run([sys.executable, TODO, *words], cwd=self.directory, capture_output=True, text=True)
        return done.returncode, done.stdout

    def test_a_list(self):
        self.assertEqual(self.todo("add", "buy", "bread"), (0, "1\n"))
        self.assertEqual(self.todo("done", "1"), (0, ""))
        self.assertEqual(self.todo("list"), (0, "1 [x] buy bread\n"))
        self.assertEqual(self.todo("remove", "1"), (0, ""))
        self.assertEqual(self.todo("add", "more"), (0, "2\n"))

    def test_what_is_wrong(self):
        self.assertEqual(self.todo("done", "1"), (2, ""))
        self.assertEqual(self.todo("add"), (2, ""))
