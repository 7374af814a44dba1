class Cache:
    """Keeps the `size` values that were used last; to set a value and to get it are uses."""

    def __init__(self, size):
        self.size, self.values = size, {}

    def set(self, key, value):
        self.values.pop(key, None)
        self.values[key] = value
        if len(self.values) > self.size:
            del self.values[next(iter(self.values))]

    def get(self, key):
        """The value, or None."""
        return self.values.get(key)
