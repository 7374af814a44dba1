import re
import sys

UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
SPAN = re.compile(r"(?=\d)(\d+d)?(\d+h)?(\d+m)?(\d+s)?", re.ASCII)


def seconds(text):
    found = SPAN.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is no span of time")
    return sum(int(part[:-1]) * UNITS[part[-1]] for part in found.groups() if part)


def span(number):
    if number < 0:
        raise ValueError("a span is not negative")
    parts, left = [], number
    for unit, size in UNITS.items():
        count, left = divmod(left, size)
        parts += [f"{count}{unit}"] * bool(count)
    return "".join(parts) or "0s"


def main():
    try:
        (word,) = sys.argv[1:]
        print(span(int(word)) if word.isdecimal() else seconds(word))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
