import unittest

from rounding import rounded


class Test(unittest.TestCase):
    def test_half_is_rounded_to_the_even_one(self):
        self.assertEqual([rounded(cents) for cents in (50, 150, 250)], [0, 2, 2])
