"""One rank of a gang: connects to `gang.py`, and runs the command on this machine beneath a keeper.

A program, run by its path: `rank.py KEEPER RANK ARGUMENT...`, where KEEPER is the path of `keeper.py`. It imports
the standard library only.

It reads where to connect on standard input, reports its machine and a free port, and waits until all ranks have.
Then the connection becomes the standard input and output of a keeper: a byte asks the command to stop, the end of
the connection ends everything, and the exit status goes back. So nothing outlives the worker on any machine. This
process stays the parent of the keeper: if that is killed, it ends what the keeper kept.
"""

import json
import os
import runpy
import signal
import socket
import sys
from typing import Any

TIMEOUT_S = 60.0
NODE_RANK, MASTER_ADDR, MASTER_PORT = "{phyla:node_rank}", "{phyla:master_addr}", "{phyla:master_port}"
"""Stand in the arguments for what only a rank knows."""


def join(keeper: dict[str, Any], rank: str, arguments: list[str]) -> int:
    """Join the gang and run its command here; return 0, or the signal that killed the keeper."""
    # The worker asks the command to stop, by a byte. An engine may send SIGTERM here at the same time, which must
    # not end the command before it has saved. The command would inherit an ignored signal, but not a handler.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    gang = json.loads(sys.stdin.readline())
    connection = socket.create_connection((gang["host"], gang["port"]), TIMEOUT_S)
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in gang["keepalive"].items():
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    hello = {"token": gang["token"], "rank": int(rank), "host": socket.gethostname(), "port": _free_port()}
    connection.sendall(json.dumps(hello).encode() + b"\n")
    address, port = _read_line(connection).split()
    keeper["become_subreaper"]()
    child = os.fork()
    if child:
        connection.close()
        return int(keeper["outlive"](child))
    output = os.dup(1)
    for standard in (0, 1):
        os.dup2(connection.fileno(), standard)
    values = {NODE_RANK: rank, MASTER_ADDR: address, MASTER_PORT: port}
    more = {"MASTER_ADDR": address, "MASTER_PORT": port}
    keeper["keep"](f"{gang['token']}:", output, [_fill(argument, values) for argument in arguments], more)
    return 0


def _free_port() -> int:
    """Return a port of this machine that no process uses."""
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])


def _read_line(connection: socket.socket) -> str:
    """Read a line, and nothing after it."""
    line = b""
    while not line.endswith(b"\n"):
        if not (byte := connection.recv(1)):
            sys.exit("phyla: the gang ended before all its ranks had started")
        line += byte
    return line.decode()


def _fill(argument: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        argument = argument.replace(name, value)
    return argument


if __name__ == "__main__":
    sys.exit(join(runpy.run_path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
