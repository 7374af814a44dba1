"""Says which files are not as they should be: those of the directory that is given, with the function renamed."""

import re
import sys
from pathlib import Path


def files(directory):
    paths = [path for path in Path(directory).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


def same(name, old, new):
    """The name of a test may have changed with the function."""
    new = new.replace(b"test_find_user", b"test_get_user") if name == "test_users.py" else new
    return re.sub(rb"\bget_user\b", b"find_user", old) == new


before, now = files(sys.argv[1]), files(".")
wrong = sorted(name for name in before | now if name not in before or not same(name, before[name], now.get(name, b"")))
sys.exit("not as it should be: " + ", ".join(wrong) if wrong else 0)
