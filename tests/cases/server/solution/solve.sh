python3 - <<'END'
import json
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
server = subprocess.Popen([sys.executable, "server.py", str(port)])
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
for _ in range(200):
    try:
        answer = json.load(direct.open(f"http://127.0.0.1:{port}/stock/bolts"))
        break
    except OSError:
        time.sleep(0.05)
server.terminate()
server.wait()
Path("receipt.txt").write_text(answer["receipt"])
END
