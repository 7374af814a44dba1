"""Sets a site up: asks for what it needs, and writes it into site.json."""

import hashlib
import json
import sys


def asked(question, fits):
    """The answer; asks again until it fits."""
    while True:
        print(question, end=" ", flush=True)
        answer = sys.stdin.readline()
        if not answer:
            sys.exit("\nsetup_site.py: nobody answered, nothing was set up")
        if fits(answer.strip()):
            return answer.strip()


site = {"name": asked("Name of the site?", str.isidentifier), "port": int(asked("Port?", str.isdigit))}
site["public"] = asked("Public? (yes/no)", {"yes", "no"}.__contains__) == "yes"
if asked(f"Really set up {site['name']}? (yes/no)", {"yes", "no"}.__contains__) == "no":
    sys.exit("Nothing was set up.")
site["seal"] = hashlib.sha256(json.dumps(site).encode()).hexdigest()[:16]
with open("site.json", "w") as file:
    json.dump(site, file)
print("Done.")
