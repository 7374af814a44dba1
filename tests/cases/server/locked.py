"""Exits with 0 when a server holds served.log."""

import fcntl
import sys

try:
    fcntl.flock(open("served.log"), fcntl.LOCK_EX | fcntl.LOCK_NB)  # noqa: SIM115
except BlockingIOError:
    sys.exit(0)
sys.exit(1)
