def price(net, number=1, tax=0):
    """The price of so many things, in cents, with tax in percent; the tenth and each that follows costs half."""
    many = net * min(number, 9) + net * max(number - 9, 0) // 2
    return round(many * (100 + tax) / 100)


def show(cents, currency=""):
    return f"{cents / 100:.2f} {currency}".strip()
