"""Random numbers that depend on what is drawn and on nothing else.

Sample i of a source follows its own stream of uniforms u[i, 0], u[i, 1], ...: at step t it takes the token at which the
cumulative distribution (tokens in the order of their ids) passes u[i, t]. u[i, t] is a pure function of (seed, key of
the source, i, t): the counter-based Philox generator is keyed by a hash of seed and source key, its counter starts at
t, and i is the position in its output. Hence, for given logits, neither the other sources of the batch, nor the order
in which prefixes are visited, nor how many rows run at once, nor the number of processes can change a sample, and the
first n of 2n samples are the n samples. Logits of another batch shape differ in the last float32 digits; since tokens
are ordered by id and not by probability, this matters only if u[i, t] or a cut lies within that distance of a boundary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from ..candidates import FloatArray


def source_key(token_ids: Iterable[int]) -> bytes:
    """Return the key of a source by its content: equal ids (without padding) have equal draws."""
    return hashlib.blake2b(np.fromiter(token_ids, dtype="<i8").tobytes(), digest_size=16).digest()


def derived_seed(seed: int, key: bytes, salt: int = 0) -> int:
    """Derive a 63-bit seed for generators of other libraries from the same material."""
    return int.from_bytes(_digest(seed, key, salt)[:8], "little") >> 1


class Uniforms:
    """u[i, t] of all sources, kept once made: prefixes of equal length may be visited apart."""

    def __init__(self, seed: int, keys: Iterable[bytes], n: int) -> None:
        self._keys = [np.frombuffer(_digest(seed, key), dtype="<u8") for key in keys]
        self._n = n
        self._steps: dict[int, FloatArray] = {}

    def step(self, t: int) -> FloatArray:
        """Return the (S·n,) uniforms in [0, 1) of step t, source by source."""
        if t not in self._steps:
            # The counter has 256 bits: starting at t·2^64 leaves each step 2^64 blocks of its own.
            streams = [np.random.Generator(np.random.Philox(key=key, counter=[0, t, 0, 0])) for key in self._keys]
            self._steps[t] = np.concatenate([stream.random(self._n) for stream in streams])
        return self._steps[t]


def _digest(seed: int, key: bytes, salt: int = 0) -> bytes:
    material = f"{int(seed)}:{int(salt)}:".encode() + key
    return hashlib.blake2b(material, digest_size=16).digest()
