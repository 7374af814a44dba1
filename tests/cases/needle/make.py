"""Writes app.log, eight days with a line a second, and prints the id of the one line that has the status 500."""

DAYS, DAY, SECOND = range(1, 9), 5, 43_210  # of the needle


def line(n):
    status, item = (200, 200, 200, 304, 404, 200, 503)[n * 31 % 7], n % 1500  # 500 is also the number of an item
    when = f"2031-05-@T{n // 3600:02}:{n // 60 % 60:02}:{n % 60:02}Z"
    return f"{when} id=@{n * 40_503 % 2**24:06x} GET /item/{item} status={status} bytes={n % 5003} ms={n % 997}"


lines = [line(n) for n in range(86_400)]
needle = lines[SECOND].replace("@", f"{DAY:02}")
fields = dict(word.split("=") for word in needle.split() if "=" in word)
with open("app.log", "w") as file:
    for day in DAYS:
        text = "\n".join([*lines, ""]).replace("@", f"{day:02}")
        file.write(text.replace(needle, needle.replace(f"status={fields['status']}", "status=500")))
print(fields["id"])
