PAIRS = {")": "(", "]": "[", "}": "{"}


def balanced(text):
    """Whether each bracket is closed by one of its kind, in the right order."""
    open_ones = []
    for sign in text:
        if sign in PAIRS.values():
            open_ones.append(sign)
        elif sign in PAIRS and (not open_ones or open_ones.pop() != PAIRS[sign]):
            return False
    return True
