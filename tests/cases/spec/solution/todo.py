import json
import sys
from pathlib import Path

FILE = Path("todo.json")


def number_of(word, items):
    if word not in items:
        raise ValueError(f"there is no item {word}")
    return word


def change(todo, words):
    """Carries a command out on the list; gives back what is to be printed."""
    items = todo["items"]
    match words:
        case ["add", _, *_]:
            items[str(todo["next"])] = {"text": " ".join(words[1:]), "done": False}
            todo["next"] += 1
            return [str(todo["next"] - 1)]
        case ["list"]:
            return [f"{number} [{'x' if item['done'] else ' '}] {item['text']}" for number, item in items.items()]
        case ["done", number]:
            items[number_of(number, items)]["done"] = True
        case ["remove", number]:
            del items[number_of(number, items)]
        case _:
            raise ValueError("usage: todo.py add TEXT... | list | done NUMBER | remove NUMBER")
    return []


def main():
    todo = json.loads(FILE.read_text()) if FILE.exists() else {"next": 1, "items": {}}
    try:
        lines = change(todo, sys.argv[1:])
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    FILE.write_text(json.dumps(todo))
    print(*lines, sep="\n", end="\n" * bool(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
