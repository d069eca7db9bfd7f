"""Caches that follow prefixes: forks are independent, cross-attention is shared and not copied."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache, StaticCache

from hf_acpmbr.sampling.base import rows_of
from hf_acpmbr.sampling.prefix_sharing.forward import PrefixCache, unsupported_layer
from tests.models import tiny_model

CPU = torch.device("cpu")


def filled(rows: int, length: int = 3) -> DynamicCache:
    cache = DynamicCache()
    for layer in range(2):
        cache.update(torch.randn(rows, 2, length, 4), torch.randn(rows, 2, length, 4), layer)
    return cache


def test_cross_attention_of_one_source_is_a_view_and_of_several_a_gather() -> None:
    cross = filled(3, length=7)
    cache = PrefixCache(EncoderDecoderCache(filled(3), cross), 3, CPU)
    one = cache.select(np.full(100, 1)).for_rows(np.full(100, 1))
    assert isinstance(one, EncoderDecoderCache)
    for shown, original in zip(one.cross_attention_cache.layers, cross.layers, strict=True):
        assert shown.keys.shape == (100, 2, 7, 4)
        assert shown.keys.stride(0) == 0
        assert shown.keys.data_ptr() == original.keys[1].data_ptr()
    assert all(one.is_updated.values()), "the model must not compute them anew"
    several = cache.for_rows(np.array([2, 0, 2]))
    assert isinstance(several, EncoderDecoderCache)
    assert torch.equal(several.cross_attention_cache.layers[0].values, cross.layers[0].values[[2, 0, 2]])


@pytest.mark.parametrize("static", [False, True])
def test_a_fork_leaves_its_parent_as_it_was(static: bool) -> None:
    config = tiny_model("llama").config
    own = StaticCache(config=config, max_cache_len=8) if static else DynamicCache(config=config)
    states = torch.arange(6.0).reshape(2, 1, 3, 1).expand(2, 1, 3, 8)
    for layer in range(2):
        own.update(states, states, layer)
    before = own.layers[0].keys.clone()
    parent = PrefixCache(own, 2, CPU)
    fork = parent.fork(np.array([1, 1, 0])).for_rows(np.zeros(3, dtype=np.int64))
    assert fork is not None
    for layer in range(2):
        fork.update(torch.ones(3, 1, 1, 8), torch.ones(3, 1, 1, 8), layer)
    assert int(fork.get_seq_length()) == 4
    assert torch.equal(fork.layers[0].keys[:, :, :3], states[[1, 1, 0]])
    assert int(own.get_seq_length()) == 3
    assert torch.equal(own.layers[0].keys, before)


def test_layers_that_cannot_be_forked_are_named() -> None:
    assert unsupported_layer(None) is None
    assert unsupported_layer(EncoderDecoderCache(filled(1), filled(1))) is None
    offloaded = DynamicCache()
    offloaded.offloading = True  # made with it, a cache wants a GPU
    assert unsupported_layer(offloaded) == "an offloaded cache"


def test_rows_of_reaches_into_nested_arguments() -> None:
    value = {"a": torch.arange(3), "b": (torch.eye(3), None), "c": 5, "d": torch.tensor(7)}
    picked = rows_of(value, np.array([2, 0]))
    assert picked["a"].tolist() == [2, 0]
    assert picked["b"][0].tolist() == [[0, 0, 1], [1, 0, 0]]
    assert (picked["b"][1], picked["c"], picked["d"].item()) == (None, 5, 7)
