python3 - <<'END'
from pathlib import Path

money = Path("money.py")
money.write_text(money.read_text().replace("int(part or 0)", 'int(part.ljust(2, "0"))'))
END
