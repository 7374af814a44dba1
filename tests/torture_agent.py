"""What the torture test forks its agents from: whatever an agent imports is imported here, once.

    python tests/torture_agent.py SOCKET            says "ready", and ends with the process that started it

Each connection to SOCKET is one agent. It brings a line of JSON, the keywords of `run`; the answer is the number of the
process, and the connection ends after it.
"""

import gc
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from socketserver import ForkingMixIn, StreamRequestHandler, UnixStreamServer

import openai
import pydantic
import tiktoken

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import tinyagent  # noqa: E402


def run(arguments: list[str], environment: dict[str, str], log: str):
    """Is the agent: this process ends with it."""
    os.environ.clear()
    os.environ.update(environment)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.argv = ["tinyagent.py", *arguments]
    sys.exit(tinyagent.main())


class Agent(StreamRequestHandler):
    def handle(self):
        """The agent is a child of this process, which can so tell when it has ended and let go of everything."""
        given = json.loads(self.rfile.readline())
        if pid := os.fork():
            self.wfile.write(b"%d\n" % pid)
            os.waitpid(pid, 0)
            return
        with suppress(SystemExit):
            run(**given)
        sys.stdout.flush()
        os._exit(0)


class Farm(ForkingMixIn, UnixStreamServer):
    request_queue_size, max_children, parent = 64, 64, os.getppid()

    def service_actions(self):
        super().service_actions()
        if os.getppid() != self.parent:
            sys.exit()


def main():
    client = openai.OpenAI(api_key="none", http_client=openai.DefaultHttpx2Client(trust_env=False))
    assert client.chat.completions and pydantic.TypeAdapter  # whose modules are imported when they are looked up
    with suppress(Exception):
        tiktoken.get_encoding("o200k_base")  # for what it imports: there is no way to the vocabulary
    with Farm(sys.argv[1], Agent) as farm:
        gc.freeze()  # else each agent walks through, and so copies, what it shares with the others
        print("ready", flush=True)
        farm.serve_forever(0.05)


if __name__ == "__main__":
    main()
