import unittest

from rounding import rounded


class Hidden(unittest.TestCase):
    def test_it_is_a_plain_function(self):
        for cents in (*range(0, 50), *range(51, 150), *range(151, 200), 50, 250, 250, 50):
            self.assertIs(type(rounded(cents)), int)
            self.assertEqual(rounded(cents), rounded(cents))


unittest.main()
