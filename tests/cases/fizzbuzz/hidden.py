import unittest

from fizzbuzz import fizzbuzz


class Hidden(unittest.TestCase):
    def test_every_number(self):
        words = {(True, False): "Fizz", (False, True): "Buzz", (True, True): "FizzBuzz"}
        expected = [words.get((n % 3 == 0, n % 5 == 0), str(n)) for n in range(1, 201)]
        self.assertEqual(list(fizzbuzz(200)), expected)

    def test_none(self):
        self.assertEqual(list(fizzbuzz(0)), [])

    def test_negative(self):
        with self.assertRaises(ValueError):
            list(fizzbuzz(-1))


unittest.main()
