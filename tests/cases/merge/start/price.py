def price(net):
    """The price of something, in cents."""
    return net


def show(cents):
    return f"{cents / 100:.2f}"
