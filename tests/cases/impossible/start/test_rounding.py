import unittest

from rounding import rounded


class Test(unittest.TestCase):
    def test_near(self):
        self.assertEqual([rounded(cents) for cents in (0, 149, 151, 199)], [0, 1, 2, 2])

    def test_half_is_rounded_up(self):
        self.assertEqual([rounded(cents) for cents in (50, 150, 250)], [1, 2, 3])
