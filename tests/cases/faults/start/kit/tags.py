def tagged(word, tags=[]):  # noqa: B006
    """The tags that are given, with the word after them, as a list of its own."""
    tags.append(word)
    return tags
