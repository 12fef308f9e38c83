"""What each command listens on, in a network of its own: the sockets that `ss -ltn` would list.

    python -m benchmarks.open_ports [--only pretrain]

Needs the right to make a network namespace (root, Linux). Nothing but the command runs there, so
whatever listens is the command's; it is looked at every hundredth of a second.
"""

import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

import click

from benchmarks.machine import describe_machine
from benchmarks.two_writers import COMMANDS, Place

_CLUSTER = '{"cluster":{"worker":["127.0.0.1:8888"]},"task":{"type":"worker","index":0}}'
_IN_NAMESPACE = "OPEN_PORTS_IN_NAMESPACE"
_LISTENS = "0A"
_MORE = {  # what of the commands starts further processes, or takes part in a cluster
    "pretraining in 2 processes": f"{COMMANDS['pretraining']} --num-processes 2",
    "pretrain on several devices": COMMANDS["pretrain"].replace("one_device", "mirrored"),
    "pretrain as a worker of several": COMMANDS["pretrain"].replace("one_device", "multi_worker"),
    "serve": "serve {here}/text_classification-preset",  # ends when it is told to
}


def _listening() -> set[str]:
    """The addresses and ports of this network that listen, as `ss -ltn` writes them."""
    found = set()
    for name in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            if state == _LISTENS:
                address, port = local.split(":")
                words = [int(address[at : at + 8], 16) for at in range(0, len(address), 8)]
                family = socket.AF_INET if name == "tcp" else socket.AF_INET6
                shown = socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words))
                shown = shown if name == "tcp" else f"[{shown}]"
                found.add(f"{shown}:{int(port, 16)}")
    return found


@click.command(help=__doc__.splitlines()[0])
@click.option("--only", multiple=True, type=click.Choice([*COMMANDS, *_MORE]), help="[all]")
def main(only: tuple[str, ...]) -> None:
    """Prints a row of a table for each command."""
    if _IN_NAMESPACE not in os.environ:
        command = ["unshare", "-n", sys.executable, "-m", "benchmarks.open_ports", *sys.argv[1:]]
        sys.exit(subprocess.run(command, env={**os.environ, _IN_NAMESPACE: "1"}).returncode)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    print(
        f"{describe_machine()}\n\n| command | status | listens on |\n| --- | ---: | --- |",
        flush=True,
    )
    import keras  # noqa: F401 - processes begin as copies of this one
    import tensorflow  # noqa: F401

    assert not _listening()
    with tempfile.TemporaryDirectory() as directory:
        place = Place(pathlib.Path(directory), forked=True)
        for name, line in {**COMMANDS, **_MORE}.items():
            if only and name not in only:
                continue
            os.environ.pop("TF_CONFIG", None)
            if "multi_worker" in line:
                os.environ["TF_CONFIG"] = _CLUSTER
            process, found = place.start_line(line, "a"), set()
            while process.is_alive():
                found |= _listening()
                time.sleep(0.01)
                if found and name == "serve":
                    process.terminate()
            process.join()
            place.take()
            shown = ", ".join(sorted(found)) or "nothing"
            print(f"| {name} | {process.exitcode} | {shown} |", flush=True)
            if process.exitcode:
                print(place.errors["a"].read_text(), file=sys.stderr)


if __name__ == "__main__":
    main()
