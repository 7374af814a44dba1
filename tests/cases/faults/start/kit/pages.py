def pages(items, size):
    """The items in lists of this size; the last may be shorter."""
    return [items[start : start + size] for start in range(0, len(items) - size + 1, size)]
