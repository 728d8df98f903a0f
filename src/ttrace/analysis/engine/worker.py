"""What a process of a pool runs: batches come by a socket, and outcomes go back.

    python -P -m ttrace.analysis.engine.worker FD

It is a program of its own, and no fork or copy of the process that asks: that one may hold locks of
torch's threads, or be a script that must not run twice. It ends when nobody asks any more. What the
jobs of a check need is imported at once, while the check opens its traces.
"""

from __future__ import annotations

import importlib
import signal
import sys
from multiprocessing.connection import Connection

from ttrace.analysis.engine.base import Workplace, one_thread, run_batch


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asks gets it as well, and closes the socket
    importlib.import_module("ttrace.analysis.work")  # it imports engines itself
    with Connection(int(sys.argv[1])) as socket, Workplace() as place, one_thread():
        while True:
            try:
                batch = socket.recv()
            except EOFError:
                return
            socket.send(run_batch(batch, place))


if __name__ == "__main__":
    main()
