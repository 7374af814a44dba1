"""get_user looks a user up, get_user_name tells only the name."""

from users.store import forget_user, get_user, get_user_name

__all__ = ["forget_user", "get_user", "get_user_name"]
