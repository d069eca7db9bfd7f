"""`cpu_kernels=`: oneDNN's products are the default's up to their last digits, and only where the weights are known."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from hf_acpmbr import load_model
from hf_acpmbr.generation import cpu_kernels
from hf_acpmbr.generation.cpu_kernels import PackedLinear, use_kernels
from tests.models import tiny_model
from tests.sampling.requests import SOURCES, request
from tests.sampling.test_prefix_sharing import same

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this torch was built without oneDNN, which is refused by name"
)


def packed_layer(bias: bool = True) -> tuple[torch.nn.Linear, torch.nn.Linear]:
    torch.manual_seed(0)
    plain = torch.nn.Linear(33, 70, bias=bias)
    layer = copy.deepcopy(plain)
    use_kernels(layer, "onednn")
    assert type(layer) is PackedLinear
    return plain, layer


@torch.no_grad()
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(33,), (5, 33), (4, 1, 33), (2, 3, 4, 33), (0, 33)])
def test_products_are_those_of_the_default(shape: tuple[int, ...], bias: bool) -> None:
    plain, layer = packed_layer(bias)
    rows = torch.randn(shape)
    torch.testing.assert_close(layer(rows), plain(rows), atol=1e-5, rtol=1e-5)
    if len(shape) == 3:
        strided = torch.randn(shape[1], shape[0], shape[2]).transpose(0, 1)
        torch.testing.assert_close(layer(strided), plain(strided), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_weights_that_change_are_multiplied_as_they_are() -> None:
    plain, layer = packed_layer()
    rows = torch.randn(3, 33)
    layer.weight.mul_(2)
    plain.weight.mul_(2)
    assert torch.equal(layer(rows), plain(rows))
    assert layer.double()(rows.double()).dtype == torch.float64


def test_gradients_come_as_before() -> None:
    _, layer = packed_layer()
    layer(torch.randn(3, 33)).sum().backward()
    assert layer.weight.grad is not None


@torch.no_grad()
@pytest.mark.parametrize("way", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_copies_are_packed_again(way) -> None:  # type: ignore[no-untyped-def]
    _, layer = packed_layer()
    twin = way(layer)
    assert type(twin) is PackedLinear
    rows = torch.randn(3, 33)
    assert torch.equal(twin(rows), layer(rows))
    assert list(layer.state_dict()) == ["weight", "bias"]
    twin.weight.zero_()
    assert not torch.equal(twin(rows), layer(rows))


@pytest.mark.parametrize("kind", ["marian", "llama"])
def test_a_model_draws_the_same_samples(kind: str) -> None:
    from hf_acpmbr.sampling.prefix_sharing import PrefixSharing

    model = copy.deepcopy(tiny_model(kind))
    expected = PrefixSharing().sample(request(model, SOURCES, max_new_tokens=4), 60)
    use_kernels(model, "onednn")
    assert all(type(layer) is PackedLinear for layer in model.modules() if isinstance(layer, torch.nn.Linear))
    assert all(map(same, expected, PrefixSharing().sample(request(model, SOURCES, max_new_tokens=4), 60)))


def test_auto_takes_what_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 4), torch.nn.Linear(4, 8))
    monkeypatch.setattr(cpu_kernels, "_trial", lambda layer: 0.5 if layer.out_features == 8 else 0.95)
    use_kernels(model, "auto")
    assert [type(layer) is PackedLinear for layer in model] == [True, False, True]


def test_auto_leaves_a_model_as_it_is_where_packing_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def wrong(self: PackedLinear, input: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*input.shape[:-1], self.out_features)

    monkeypatch.setattr(PackedLinear, "forward", wrong)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8))
    with pytest.raises(ValueError, match=r"does not work with torch .*: its product of 4 × 8 is wrong"):
        use_kernels(model, "onednn")
    use_kernels(model, "auto")
    assert type(model[0]) is torch.nn.Linear
    assert "cannot pack weights" in caplog.text


def test_what_it_cannot_serve_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"onednn' is for float32 on a CPU, .* torch.bfloat16 on cpu: leave it out"):
        load_model("embedded", device="cpu", dtype="bfloat16", cpu_kernels="onednn")
    with pytest.raises(ValueError, match="cpu_kernels must be one of default, onednn, auto, got 'mkl'"):
        load_model("embedded", cpu_kernels="mkl")


def test_a_loaded_model_is_packed() -> None:
    model, _, _ = load_model("embedded", device="cpu", cpu_kernels="onednn")
    assert sum(isinstance(layer, PackedLinear) for layer in model.modules()) > 40  # type: ignore[attr-defined]
