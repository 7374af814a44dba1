"""The stock over HTTP, on 127.0.0.1: python3 server.py PORT

GET /stock/NAME answers with JSON: how many there are, and the receipt of the request. served.log has it, too.
"""

import fcntl
import json
import os
import secrets
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

STOCK = {"bolts": 412, "nuts": 390, "washers": 1200}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        name, receipt = self.path.removeprefix("/stock/"), secrets.token_hex(8)
        found = (
            {"name": name, "stock": STOCK[name], "receipt": receipt} if name in STOCK else {"error": "no such thing"}
        )
        LOG.write(f"{self.path} {receipt}\n")
        self.send_response(200 if name in STOCK else 404)
        self.end_headers()
        self.wfile.write(json.dumps(found).encode() + b"\n")

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    LOG = open("served.log", "a", buffering=1)  # noqa: SIM115 (open, and locked, as long as the server runs)
    fcntl.flock(LOG, fcntl.LOCK_EX | fcntl.LOCK_NB)
    LOG.write(f"pid {os.getpid()}\n")
    HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
