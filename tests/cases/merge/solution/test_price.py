import unittest

from price import price, show


class Test(unittest.TestCase):
    def test_price(self):
        self.assertEqual(price(1000), 1000)

    def test_tax(self):
        self.assertEqual(price(1000, tax=19), 1190)

    def test_many(self):
        self.assertEqual(price(1000, number=11), 10000)

    def test_show(self):
        self.assertEqual(show(1050), "10.50")
