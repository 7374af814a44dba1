"""A short conversation with a real server, to be looked at: no part of the tests.

    python tests/live.py --base_url http://127.0.0.1:8080/v1 [--model NAME] [--text_url URL]

Four parts: a call that writes a file; results that fill a small window; a result that is longer than the server's own
window; and calls that the model writes as text, at --text_url if that is another server. What a small model achieves is
its own affair: what counts is that every turn ends with a good status, and that the history goes on. The model runs
commands in new temporary directories.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripted import breaches

from tinyagent import Agent, Config, Model, Session

WRITE = "Create the file hello.txt with the text: hello. Then say in one sentence what you did."
BARE = "Create the file hello.txt with the text: hello. Reply with nothing but the JSON of the call."
COUNT = "Run the shell command: seq {} {}. Then tell me the last line of its output, and nothing else."


class Part:
    """An agent in a directory of its own, and what happens to it."""

    def __init__(self, title: str, root: Path, **config):
        print(f"\n== {title}", flush=True)
        self.directory = root / title.partition(":")[0]
        self.directory.mkdir()
        settings = Config(max_steps=8, max_seconds=900, **config)
        self.session = Session(root / "state" / self.directory.name / "sessions" / "live.jsonl")
        self.agent = Agent(settings, self.directory, self.session, Model(settings, self.session.learned).chat)

    def say(self, text: str):
        """A turn, told in a few lines."""
        began, kinds = time.monotonic(), Counter()
        print(f"> {text[:100]}")
        for happened in self.agent.turn(text):
            kinds[happened.type] += 1
            if happened.type in ("tool_called", "noticed", "retrying", "learned"):
                about = {name: value for name, value in vars(happened).items() if name not in ("time", "call", "kind")}
                print(f"  {happened.type}: {about}"[:200], flush=True)
        faults = breaches({"messages": [{"role": "system", "content": "."}, *self.joined()]})
        counts = [f"{number} {kind}" for kind, number in kinds.items() if kind.startswith(("tool", "comp", "text"))]
        took, window = time.monotonic() - began, f"window {self.agent.window:,}"
        print(f"  {' '.join(happened.text.split())[:160]!r}")
        print(f"  {happened.status} in {took:.0f} s, {happened.steps} requests; {happened.usage}")
        print(f"  {', '.join([*counts, window])}; history: {faults or 'valid'}", flush=True)

    def show(self):
        print(
            "  there is:", [(path.name, path.read_text()[:40]) for path in self.directory.iterdir() if path.is_file()]
        )

    def joined(self) -> list[dict]:
        """The history as it is sent, messages of the user in a row as one."""
        messages = []
        for message in self.session.messages:
            if messages and message["role"] == messages[-1]["role"] == "user":
                message = message | {"content": messages.pop()["content"] + "\n\n" + message["content"]}
            messages.append(message)
        return messages


def first_model(url: str) -> str:
    with build_opener(ProxyHandler({})).open(f"{url}/models", timeout=5) as answer:
        return json.load(answer)["data"][0]["id"]


def main():
    parser = argparse.ArgumentParser(description="A short conversation with a real server.")
    parser.add_argument("--base_url", required=True)
    parser.add_argument("--model", default="", help="else the server's first")
    parser.add_argument("--text_url", default="", help="a server whose model writes its calls as text")
    options = parser.parse_args()
    url, text_url = options.base_url.rstrip("/"), (options.text_url or options.base_url).rstrip("/")
    server = {"base_url": url, "model": options.model or first_model(url)}
    with tempfile.TemporaryDirectory() as root:
        writing = Part("tool: a call that writes a file", Path(root), **server)
        writing.say(WRITE)
        writing.show()
        small = Part("small: a window of 4,000 tokens that fills", Path(root), context=4000, **server)
        for number in range(1, 4):
            small.say(COUNT.format(number * 1000, number * 1000 + 200))
        long = Part("long: a result that is longer than the server's window", Path(root), text_calls=True, **server)
        long.say(COUNT.format(1, 4000))
        server = {"base_url": text_url, "model": options.model or first_model(text_url)}
        Part("text: calls as text, not asked for", Path(root), **server).say(BARE)
        writing = Part("asked: calls as text, with --text_calls", Path(root), text_calls=True, **server)
        writing.say(BARE)
        writing.show()


if __name__ == "__main__":
    main()
