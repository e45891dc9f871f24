"""Whether a server listens at an address."""

import socket

ANSWER_S = 10.0


def check_listening(address: str) -> None:
    """Raise OSError if nothing answers at `HOST:PORT` within ten seconds; other addresses are not looked at."""
    host, _, port = address.rpartition(":")
    if port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_S).close()
