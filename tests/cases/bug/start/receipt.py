from basket import read
from money import amount


def receipt(lines):
    items = read(lines)
    rows = [f"{name:10}{amount(number * each):>8}" for name, number, each in items]
    total = sum(number * each for _, number, each in items)
    return "\n".join([*rows, f"{'total':10}{amount(total):>8}"])
