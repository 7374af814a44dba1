import unittest

from slug import slug


class Hidden(unittest.TestCase):
    def test_others(self):
        titles = {"": "", "a": "a", "?!": "", "A--b": "a-b", "--9 lives--": "9-lives", "Ten\tto 1": "ten-to-1"}
        self.assertEqual({title: slug(title) for title in titles}, titles)


unittest.main()
