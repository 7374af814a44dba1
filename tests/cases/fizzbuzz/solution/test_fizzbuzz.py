import unittest

from fizzbuzz import fizzbuzz


class Test(unittest.TestCase):
    def test_the_first_fifteen(self):
        expected = "1 2 Fizz 4 Buzz Fizz 7 8 Fizz Buzz 11 Fizz 13 14 FizzBuzz"
        self.assertEqual(" ".join(fizzbuzz(15)), expected)

    def test_none(self):
        self.assertEqual(fizzbuzz(0), [])

    def test_negative(self):
        with self.assertRaises(ValueError):
            fizzbuzz(-1)
