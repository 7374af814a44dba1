import subprocess
import sys
import unittest

from span import seconds, span

UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}


class Hidden(unittest.TestCase):
    def run_with(self, *words):
        command = [sys.executable, "span.py", *words]
        return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)

    def test_there_and_back(self):
        for number in [*range(200), 3599, 3600, 5400, 86399, 86400, 93784, 10**7]:
            self.assertEqual(seconds(span(number)), number)
        self.assertEqual([span(n) for n in (0, 59, 5400, 86401, 93784)], ["0s", "59s", "1h30m", "1d1s", "1d2h3m4s"])

    def test_numbers_of_any_size(self):
        self.assertEqual([seconds(text) for text in ("90m", "1d100s", "0s", "0h5m")], [5400, 86500, 0, 300])

    def test_what_is_no_span(self):
        for text in ("1m1h", "5x", "h", "", "1h1h", "1.5h", "-5m", "1h 5m"):
            with self.assertRaises(ValueError, msg=text):
                seconds(text)

    def test_the_program(self):
        for word, expected in (("1h30m", "5400\n"), ("5400", "1h30m\n"), ("0", "0s\n")):
            done = self.run_with(word)
            self.assertEqual((done.stdout, done.stderr, done.returncode), (expected, "", 0), word)
        for words in ([], ["1h", "2h"], ["1m1h"], ["-5"], ["h"], [""]):
            done = self.run_with(*words)
            self.assertEqual((done.stdout, done.stderr.count("\n"), done.returncode), ("", 1, 2), words)


unittest.main()
