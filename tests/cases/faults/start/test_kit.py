import unittest

from kit.brackets import balanced
from kit.cache import Cache
from kit.leap import is_leap
from kit.merging import merge
from kit.pages import pages
from kit.table import table
from kit.tags import tagged
from kit.version import newest


class Test(unittest.TestCase):
    def test_brackets(self):
        self.assertEqual([balanced(text) for text in ("(a[b]{c})", "(]", ")", "((")], [True, False, False, False])

    def test_cache(self):
        cache = Cache(2)
        cache.set("a", 1)
        cache.set("b", 2)
        self.assertEqual(cache.get("a"), 1)
        cache.set("c", 3)
        self.assertEqual([cache.get(key) for key in "abc"], [1, None, 3])

    def test_leap(self):
        self.assertEqual([is_leap(year) for year in (2023, 2024, 1900, 2000)], [False, True, False, True])

    def test_merging(self):
        self.assertEqual(merge([1, 4], [2, 3, 5, 6]), [1, 2, 3, 4, 5, 6])

    def test_pages(self):
        self.assertEqual(pages([1, 2, 3, 4, 5], 2), [[1, 2], [3, 4], [5]])

    def test_table(self):
        self.assertEqual(table([["a", "bcd"], ["efg", "h"]]), ["a    bcd", "efg  h"])

    def test_tags(self):
        self.assertEqual([tagged("a"), tagged("b"), tagged("c", ["x"])], [["a"], ["b"], ["x", "c"]])

    def test_version(self):
        self.assertEqual(newest(["1.9.2", "1.10.0", "1.2"]), "1.10.0")


if __name__ == "__main__":
    unittest.main()
