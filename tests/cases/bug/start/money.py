def cents(text):
    """The cents of an amount such as 3, 3.5 or 3.50."""
    whole, _, part = text.partition(".")
    return int(whole) * 100 + int(part or 0)


def amount(cents):
    return f"{cents // 100}.{cents % 100:02}"
