import os

from defaults import FALLBACK, port_of


def port():
    return int(os.environ.get("RELAY_PORT") or port_of(FALLBACK))


if __name__ == "__main__":
    print(f"would listen on port {port()}")
