python3 - <<'END'
from pathlib import Path

FAULTS = [
    ("brackets", "    return True", "    return not open_ones", "what stayed open was not seen"),
    ("cache", "return self.values.get(key)", "", "to get a value was no use of it"),
    ("leap", "year % 100 != 0", "(year % 100 != 0 or year % 400 == 0)", "every 400 years there is one"),
    ("merging", "merged + left[i:]", "merged + left[i:] + right[j:]", "the rest of the right list was lost"),
    ("pages", "len(items) - size + 1", "len(items)", "a shorter last page was lost"),
    ("table", '" ".join', '"  ".join', "one space between columns"),
    ("tags", "    tags.append(word)\n    return tags", "    return [*tags, word]", "all calls had one list"),
    ("version", "max(versions)", 'max(versions, key=lambda v: [*map(int, v.split("."))])', "compared as text"),
]
GET = "if key in self.values:\n            self.set(key, self.values[key])\n        return self.values.get(key)"
for module, old, new, why in FAULTS:
    path = Path("kit", f"{module}.py")
    path.write_text(path.read_text().replace(old, new or GET))
    with open("faults.txt", "a") as file:
        file.write(f"{module}: {why}\n")
END
