import unittest

from price import price, show


class Hidden(unittest.TestCase):
    def test_each_side(self):
        self.assertEqual((price(1000), price(1000, tax=19), price(1000, number=11)), (1000, 1190, 10000))
        self.assertEqual((show(1050), show(1050, currency="EUR")), ("10.50", "10.50 EUR"))

    def test_both(self):
        self.assertEqual((price(1000, number=11, tax=20), price(999, tax=7, number=2)), (12000, 2138))


unittest.main()
