import subprocess
import sys
import unittest
from pathlib import Path

from span import seconds, span


class Test(unittest.TestCase):
    def test_reading(self):
        self.assertEqual([seconds(text) for text in ("1h30m", "90m", "1d2h3m4s")], [5400, 5400, 93784])

    def test_writing(self):
        self.assertEqual([span(number) for number in (0, 5400, 93784)], ["0s", "1h30m", "1d2h3m4s"])

    def test_what_is_wrong(self):
        for text in ("1m1h", "5x", "h", "-5", "1.5h", ""):
            with self.assertRaises(ValueError):
                seconds(text)

    def test_the_program(self):
        command = [sys.executable, Path(__file__).with_name("span.py")]
        self.assertEqual(subprocess.run([*command, "5400"], capture_output=True, text=True).stdout, "1h30m\n")
        self.assertEqual(subprocess.run(command, capture_output=True).returncode, 2)
