import users.store as store


def page(number):
    user = store.get_user(number)
    return f"<h1>{user['name']}</h1>"


HANDLERS = {"user": page, "raw": store.get_user, "name": store.get_user_name}
LOOKED_UP = getattr(store, "get_user")  # noqa: B009
