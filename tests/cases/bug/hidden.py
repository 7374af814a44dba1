import unittest

from basket import read
from money import amount, cents


class Hidden(unittest.TestCase):
    def test_every_amount(self):
        for number in range(1000):
            self.assertEqual(cents(amount(number)), number)

    def test_short_ones(self):
        self.assertEqual(
            [cents(text) for text in ("7", "7.", "7.1", "7.01", "0.5", "12.30")], [700, 700, 710, 701, 50, 1230]
        )

    def test_a_basket(self):
        self.assertEqual(read(["2 x black tea @ 4.2", " "]), [("black tea", 2, 420)])


unittest.main()
