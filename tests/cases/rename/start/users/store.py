USERS = {1: {"name": "Ada"}, 2: {"name": "Bo"}}


def get_user(number):
    """The user with this number; KeyError if there is none."""
    return USERS[number]


def get_user_name(number):
    return get_user(number)["name"]


def forget_user(number):
    """get_user raises KeyError from then on."""
    return USERS.pop(number, None)
