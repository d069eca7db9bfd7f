"""Which prefixes have ended, without asking the device where length and last token alone tell."""

from __future__ import annotations

from typing import TypeGuard

import numpy as np
import torch
from transformers import EosTokenCriteria, MaxLengthCriteria, StoppingCriteria, StoppingCriteriaList

from ..candidates import IntArray
from .base import BoolArray


class Stopping:
    """A request's stopping criteria: end-of-sequence tokens and lengths on the host, all others on the device."""

    def __init__(self, criteria: StoppingCriteriaList, device: torch.device) -> None:
        self._device = device
        self._ends: set[int] = set()
        self._max_length = np.inf
        self._asked = StoppingCriteriaList()
        for item in criteria:
            if type(item) is EosTokenCriteria:
                self._ends.update(item.eos_token_id.reshape(-1).tolist())
            elif _is_length_alone(item):
                self._max_length = min(self._max_length, item.max_length)
            else:
                self._asked.append(item)

    def __call__(self, ids: IntArray) -> BoolArray:
        """(U,) whether each of the sequences `ids` (U, P + t) ends with its last token."""
        done = np.full(len(ids), ids.shape[1] >= self._max_length)
        for token in self._ends:
            done |= ids[:, -1] == token
        if self._asked:
            done |= self._asked(torch.as_tensor(ids, device=self._device), None).cpu().numpy()
        return done


def _is_length_alone(item: StoppingCriteria) -> TypeGuard[MaxLengthCriteria]:
    """A maximum length, unless it lies beyond the model's positions: then the criterion warns when they are passed."""
    if type(item) is not MaxLengthCriteria:
        return False
    return item.max_position_embeddings is None or item.max_length <= item.max_position_embeddings + 1
