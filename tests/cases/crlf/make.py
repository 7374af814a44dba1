"""Writes settings.ini with this timeout of [web]: in Latin-1, with the line ends of DOS, the last line without one."""

import sys
from pathlib import Path

text = (Path(__file__).parent / "start" / "settings.ini").read_text(encoding="utf-8")
text = text.replace("0.0.0.0\ntimeout = 30", f"0.0.0.0\ntimeout = {sys.argv[1]}")
Path("settings.ini").write_bytes(text.rstrip("\n").replace("\n", "\r\n").encode("latin-1"))
