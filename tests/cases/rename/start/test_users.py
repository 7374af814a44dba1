import unittest

import users
from users.web.page import HANDLERS, LOOKED_UP, page


class Test(unittest.TestCase):
    def test_get_user(self):
        self.assertEqual(users.get_user(1), {"name": "Ada"})
        self.assertEqual(users.get_user_name(2), "Bo")

    def test_page(self):
        self.assertEqual(page(1), "<h1>Ada</h1>")
        self.assertEqual(HANDLERS["raw"](2), LOOKED_UP(2))


if __name__ == "__main__":
    unittest.main()
