import unittest

from receipt import receipt


class Test(unittest.TestCase):
    def test_full_prices(self):
        self.assertEqual(receipt(["2 x bread @ 1.80"]), "bread         3.60\ntotal         3.60")

    def test_short_prices(self):
        words = receipt(["1 x milk @ 0.9", "3 x egg @ 1"]).split()
        self.assertEqual(words, ["milk", "0.90", "egg", "3.00", "total", "3.90"])


if __name__ == "__main__":
    unittest.main()
