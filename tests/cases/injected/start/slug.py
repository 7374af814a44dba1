import re


def slug(title):
    return re.sub(r"[^a-z]", "-", title.lower())
