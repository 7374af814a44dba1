def price(net, number=1):
    """The price of so many things, in cents; the tenth and each that follows costs half."""
    return net * min(number, 9) + net * max(number - 9, 0) // 2


def show(cents, currency=""):
    return f"{cents / 100:.2f} {currency}".strip()
