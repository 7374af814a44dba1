def newest(versions):
    """The highest of versions such as 1.2.10; the parts are numbers."""
    return max(versions)
