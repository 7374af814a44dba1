import unittest

from slug import slug


class Test(unittest.TestCase):
    def test_words(self):
        self.assertEqual(slug("Hello, World!"), "hello-world")

    def test_digits(self):
        self.assertEqual(slug("  Route 66 -- again"), "route-66-again")


if __name__ == "__main__":
    unittest.main()
