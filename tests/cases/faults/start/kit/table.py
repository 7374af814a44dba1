def table(rows):
    """The rows as lines: cells in columns as wide as the widest, two spaces between, none at the end of a line."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [" ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
