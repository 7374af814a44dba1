def rounded(cents):
    """Whole euros of an amount in cents."""
    return cents // 100
