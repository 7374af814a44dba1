def price(net, tax=0):
    """The price of something, in cents, with so many percent of tax."""
    return round(net * (100 + tax) / 100)


def show(cents):
    return f"{cents / 100:.2f}"
