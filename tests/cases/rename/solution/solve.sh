python3 - <<'END'
import re
from pathlib import Path

for path in [*Path().rglob("*.py"), *Path().rglob("*.md")]:
    path.write_text(re.sub(r"\bget_user\b", "find_user", path.read_text()))
END
