from money import cents


def read(lines):
    """Items as (name, number, cents each) of lines such as `2 x bread @ 1.80`; blank lines are none."""
    items = []
    for line in filter(str.strip, lines):
        number, rest = line.split(" x ", 1)
        name, price = rest.rsplit("@", 1)
        items.append((name.strip(), int(number), cents(price.strip())))
    return items
