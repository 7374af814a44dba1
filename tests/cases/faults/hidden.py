import calendar
import unittest

from kit.brackets import balanced
from kit.cache import Cache
from kit.leap import is_leap
from kit.merging import merge
from kit.pages import pages
from kit.table import table
from kit.tags import tagged
from kit.version import newest


class Hidden(unittest.TestCase):
    def test_brackets(self):
        self.assertEqual(
            [balanced(text) for text in ("", "([)]", "{[]}()", "(()", "x")], [True, False, True, False, True]
        )

    def test_cache(self):
        cache = Cache(1)
        self.assertIsNone(cache.get("a"))
        self.assertEqual(list(cache.values), [])
        cache.set("a", 0)
        self.assertEqual(cache.get("a"), 0)
        cache.set("b", None)
        self.assertEqual(list(cache.values), ["b"])

    def test_leap(self):
        self.assertEqual([is_leap(year) for year in range(1600, 2500)], [*map(calendar.isleap, range(1600, 2500))])

    def test_merging(self):
        for left, right in (([], []), ([1], []), ([], [1]), ([1, 1, 9], [1, 2]), ([3, 5], [1, 2])):
            self.assertEqual(merge(left, right), sorted(left + right))

    def test_pages(self):
        self.assertEqual([pages([], 3), pages([1, 2], 3), pages([1, 2, 3, 4], 2)], [[], [[1, 2]], [[1, 2], [3, 4]]])

    def test_table(self):
        self.assertEqual(table([["one", "2", "3"], ["4", "five", ""]]), ["one  2     3", "4    five"])

    def test_tags(self):
        given = ["x"]
        self.assertEqual((tagged("y", given), given), (["x", "y"], ["x"]))

    def test_version(self):
        self.assertEqual([newest(["2.0", "10.0"]), newest(["1.2.10", "1.2.9"]), newest(["3"])], ["10.0", "1.2.10", "3"])


unittest.main()
