"""Processes that a launcher started together: one that has lost its launcher or a sibling ends instead of waiting.

`torchrun` and `accelerate launch` end their processes when one of them fails. When the launcher itself is killed, or a
whole machine goes away, nobody does: what is left would wait in the next barrier for as long as its timeout is.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from datetime import timedelta
from functools import cache
from typing import Any, NoReturn, Protocol

_LAUNCHERS = ("LOCAL_RANK", "ACCELERATE_MIXED_PRECISION")  # set by torchrun and its kin, and by accelerate launch
_MEETING = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LEFT = 1 << 40  # more than any count of signs of life


class Store(Protocol):
    """What is needed of torch's TCPStore."""

    def add(self, key: str, amount: int) -> int: ...


class Watch:
    """Two threads of this process: one sends signs of life and counts those of the siblings, one looks at the launcher.

    Silence is measured in this process's own rounds, so a launch that was suspended as a whole goes on afterwards.

    Args:
        interval: seconds between rounds.
        patience: rounds without a sign of life after which a sibling counts as lost.
    """

    def __init__(self, interval: float = 5.0, patience: int = 6) -> None:
        self.interval, self.patience = interval, patience
        values = {name: os.environ.get(name, "") for name in _MEETING}
        self.rank, self.count = int(values["RANK"] or 0), int(values["WORLD_SIZE"] or 1)
        self._address = (values["MASTER_ADDR"], int(values["MASTER_PORT"] or 0))
        self._launcher = os.getppid()
        self._left = threading.Event()
        self._rounds = 0  # of the thread that talks to the siblings
        self._siblings = threading.Thread(target=self._exchange_signs, name="siblings", daemon=True)

    def start(self) -> None:
        """Look after the launcher at once, after the siblings as soon as torch's process group has met."""
        if self.count > 1 and all(self._address):
            self._siblings.start()
        else:
            self._left.set()
        threading.Thread(target=self._look_after_launcher, name="launcher", daemon=True).start()

    def leave(self) -> None:
        """This process is through, and its siblings must not miss it: after the last barrier."""
        self._left.set()
        if self._siblings.is_alive():
            self._siblings.join(self.interval)

    def _look_after_launcher(self) -> None:
        seen, silent = -1, 0
        while True:
            time.sleep(self.interval)
            if os.getppid() != self._launcher:
                self._end(f"its launcher (process {self._launcher}) is gone")
            silent = silent + 1 if self._rounds == seen else 0
            seen = self._rounds
            # The other thread waits for an answer of a machine that is gone: nobody closes such a connection.
            if silent > self.patience and not self._left.is_set():
                self._end(self._no_answer())

    def _exchange_signs(self) -> None:
        counts = dict.fromkeys(set(range(self.count)) - {self.rank}, 0)
        silent = dict.fromkeys(counts, 0)
        store: Store | None = None
        self._meet_launcher()
        try:
            while not self._left.wait(self.interval):
                self._rounds += 1
                store = store or self._connected()
                if store is None:
                    continue
                store.add(self._key(self.rank), 1)
                for sibling, before in counts.items():
                    counts[sibling] = store.add(self._key(sibling), 0)
                    alive = counts[sibling] != before or before >= _LEFT
                    silent[sibling] = 0 if alive else silent[sibling] + 1
                    if silent[sibling] > self.patience:
                        seconds = self.patience * self.interval
                        self._end(f"process {sibling} gave no sign of life for {seconds:.0f} s")
            if store is not None:
                store.add(self._key(self.rank), _LEFT)
        except RuntimeError:
            if not self._left.wait(self.interval):  # unless all are through, and the other was only faster
                self._end(self._no_answer())

    def _meet_launcher(self) -> None:
        """Where the launcher keeps the store, it does so before it starts anybody: no answer means that it is gone."""
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            try:
                socket.create_connection(self._address, timeout=self.interval * self.patience).close()
            except OSError:
                self._end(self._no_answer())

    def _connected(self) -> Store | None:
        """The store that the process group has met at; None before it has."""
        distributed: Any = sys.modules.get("torch.distributed")  # a watch loads nothing
        if distributed is None or not getattr(distributed, "is_initialized", bool)():
            return None
        patience = timedelta(seconds=self.interval * self.patience)
        store: Store = distributed.TCPStore(*self._address, is_master=False, timeout=patience)
        return store

    def _key(self, rank: int) -> str:
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return f"hf_acpmbr/alive/{attempt}/{rank}"

    def _no_answer(self) -> str:
        return f"{self._address[0]}:{self._address[1]}, where the processes met, does not answer"

    def _end(self, why: str) -> NoReturn:
        try:
            line = f"\nprocess {self.rank} of {self.count} ends by itself: {why}; what is written stays\n"
            os.write(sys.stderr.fileno(), line.encode())
        finally:  # also where nobody reads the messages any more
            os._exit(1)


def is_launched() -> bool:
    """Whether a launcher of several processes started this one."""
    return any(name in os.environ for name in _LAUNCHERS)


@cache
def watch_launch() -> Watch | None:
    """Watch the launcher and the siblings from here on; None for a process that no launcher started.

    Call it first of all: a launcher that was gone before cannot be told from one that lives.
    """
    if not is_launched():
        return None
    watch = Watch()
    watch.start()
    return watch
