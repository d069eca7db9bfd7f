"""Caches that follow prefixes: forks are independent, cross-attention is shared and not copied."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import DynamicCache, StaticCache

from hf_acpmbr.sampling.prefix_sharing.forward import Forward, PrefixCache
from hf_acpmbr.sampling.rows import Rows
from tests.models import tiny_model
from tests.sampling.requests import SOURCES, request


def test_cross_attention_of_one_source_is_a_view_and_of_several_a_gather() -> None:
    forward = Forward(request(tiny_model("m2m100"), SOURCES, max_new_tokens=3))
    _, cache = forward.first()
    cross = cache.whole.cross_attention_cache.layers[0]
    original = cross.keys

    def keys_in_a_pass(sources: list[int]) -> torch.Tensor:
        rows = Rows(np.array(sources), torch.tensor(sources))
        ids = torch.full((len(sources), 2), 3)
        forward.next(ids, rows, cache.follow(rows, rows, fork=True).whole)
        return cross.keys

    one = keys_in_a_pass([1] * 100)
    assert one.shape == (100, *original.shape[1:])
    assert one.stride(0) == 0
    assert one.data_ptr() == original[1].data_ptr()
    assert torch.equal(keys_in_a_pass([2, 0, 2]), original[[2, 0, 2]])


@pytest.mark.parametrize("static", [False, True])
def test_a_fork_leaves_its_parent_as_it_was(static: bool) -> None:
    config = tiny_model("llama").config
    own = StaticCache(config=config, max_cache_len=8) if static else DynamicCache(config=config)
    states = torch.arange(6.0).reshape(2, 1, 3, 1).expand(2, 1, 3, 8)
    for layer in range(2):
        own.update(states, states, layer)
    before = own.layers[0].keys.clone()
    rows = Rows(np.array([1, 1, 0]), torch.tensor([1, 1, 0]))
    fork = PrefixCache(own, 2).follow(rows, rows, fork=True).whole
    assert fork is not None
    for layer in range(2):
        fork.update(torch.ones(3, 1, 1, 8), torch.ones(3, 1, 1, 8), layer)
    assert int(fork.get_seq_length()) == 4
    assert torch.equal(fork.layers[0].keys[:, :, :3], states[[1, 1, 0]])
    assert int(own.get_seq_length()) == 3
    assert torch.equal(own.layers[0].keys, before)


def test_rows_reach_into_nested_arguments() -> None:
    value = {"a": torch.arange(3), "b": (torch.eye(3), None), "c": 5, "d": torch.tensor(7)}
    picked = Rows(np.array([2, 0])).of(value)
    assert picked["a"].tolist() == [2, 0]
    assert picked["b"][0].tolist() == [[0, 0, 1], [1, 0, 0]]
    assert (picked["b"][1], picked["c"], picked["d"].item()) == (None, 5, 7)
