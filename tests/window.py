"""A terminal for tests: keys go into a real pty, and the screen is read as a person sees it."""

import os
import termios
import time

import pexpect
import pyte


class Window:
    """A terminal with the agent in it. Everything that it prints is in `printed`; `screen` is what a person sees."""

    def __init__(self, line, size, env):
        environment = {**os.environ, "TERM": "xterm", **env}
        self.child = pexpect.spawn(line[0], line[1:], env=environment, timeout=15, dimensions=size)
        self.terminal = pyte.HistoryScreen(size[1], size[0], history=1000)
        self.stream, self.printed = pyte.ByteStream(self.terminal), b""
        self.modes = termios.tcgetattr(self.child.child_fd)

    def look(self, seconds=0.05):
        """Takes what is printed in so many seconds."""
        try:
            data = self.child.read_nonblocking(65536, seconds)
        except (pexpect.TIMEOUT, pexpect.EOF):
            return
        self.printed += data
        self.stream.feed(data)

    @property
    def screen(self):
        """The lines of the window, those that have left it at the top too."""
        above = ["".join(row[i].data for i in sorted(row)) for row in self.terminal.history.top]
        return [line.rstrip() for line in [*above, *self.terminal.display] if line.strip()]

    def until(self, *texts, gone=(), seconds=15):
        """Waits until the screen shows these, and the others no more; gives back the screen."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.look()
            text = "\n".join(self.screen)
            if all(wanted in text for wanted in texts) and not any(unwanted in text for unwanted in gone):
                return text
        raise AssertionError(f"waited for {texts}, without {gone}; the screen:\n{text}")

    def press(self, *keys):
        for key in keys:
            self.child.send(key)

    def prompt(self):
        """Waits until an empty prompt is the last line."""
        deadline = time.monotonic() + 15
        while self.screen[-1:] != [">"]:
            assert time.monotonic() < deadline, "\n".join(self.screen)
            self.look()

    def say(self, text, *shown):
        """Says something at the prompt, and waits for what comes of it, and the next prompt."""
        self.press(text + "\r")
        self.until(*shown)
        self.prompt()

    def ended(self):
        """Reads to the end; gives back the exit code, or the signal below 0."""
        deadline = time.monotonic() + 15
        while self.child.isalive() and time.monotonic() < deadline:
            self.look()
        self.look()
        assert termios.tcgetattr(self.child.child_fd)[:4] == self.modes[:4]
        self.child.wait()
        return self.child.exitstatus if self.child.signalstatus is None else -self.child.signalstatus

    def colour(self, text):
        """The characters of the line that begins so, with their colours."""
        row = next(i for i, line in enumerate(self.terminal.display) if line.startswith(text))
        return [self.terminal.buffer[row][i] for i in range(len(text))]
