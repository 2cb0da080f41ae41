"""The server and all sites on this machine, each in a process of its own: python together.py"""

import socket
import subprocess
import sys

from task import sites

with socket.socket() as probe:  # a free port
    probe.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{probe.getsockname()[1]}"


def aspire(*words, **more):
    return subprocess.Popen([sys.executable, "-m", "aspire", *words], **more)


server = aspire(
    *("server", "task.py", "--kit", "kits/server", "--listen", address),
    *("--iterations", "400", "--out", "run"),
)
clinics = [
    aspire(
        *("site", "task.py", "--kit", f"kits/sites/{name}", "--connect", address),
        stdout=subprocess.DEVNULL,  # "The run is over."
    )
    for name in sites()
]
sys.exit(max(process.wait() for process in (server, *clinics)))
