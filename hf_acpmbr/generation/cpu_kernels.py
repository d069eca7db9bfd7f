"""Faster matrix products on CPUs: oneDNN with weights that are packed once, in place of torch's default library.

torch multiplies float32 matrices by MKL, which packs the weights anew in every product; oneDNN with packed weights
takes half the time where a vocabulary is large or the processor is not Intel's. The products differ in the last digits.

torch has no public function for it: these are the operators by which its compiler packs frozen weights. They are tried
once per model, and refused if they are missing or compute something else.
"""

from __future__ import annotations

import copy
import logging
import time
from collections import Counter
from typing import Any, cast

import torch

logger = logging.getLogger(__name__)

# Rows of the trial products, as a step of sampling has, and how often each is timed.
_ROWS, _TIMES = 32, 7
# "auto" packs weights whose product takes less than this share of the default's time.
_WORTH = 0.9
# Products of float32 in another order of sums differ by less than this, relative to the largest.
_TOLERANCE = 1e-4


class PackedLinear(torch.nn.Linear):
    """A Linear multiplied by oneDNN from a packed copy of its weights, as long as they stay what they were."""

    _packed: torch.Tensor
    _packed_from: tuple[int, int]

    def pack(self) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach())
        self._packed_from = self._weights_now()

    def _weights_now(self) -> tuple[int, int]:
        return self.weight.data_ptr(), self.weight._version

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        served = input.dtype == torch.float32 and input.dim() > 1 and not torch.is_grad_enabled()
        if not served or self._packed_from != self._weights_now():
            return super().forward(input)
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(input, self._packed, self.bias, "none", [], "")
        return product

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_packed")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.pack()


@torch.no_grad()
def use_kernels(model: torch.nn.Module, kernels: str) -> None:
    """Multiply by oneDNN in a model, in place.

    Args:
        kernels: "onednn" for every Linear; "auto" for those that a short trial finds faster, so that the last digits
            may differ from one run to the next.
    """
    layers = [module for module in model.modules() if type(module) is torch.nn.Linear]
    served = [x for x in layers if x.weight.device.type == "cpu" and x.weight.dtype == torch.float32]
    if kernels == "onednn" and not served:
        kinds = Counter(f"{layer.weight.dtype} on {layer.weight.device.type}" for layer in layers)
        raise ValueError(
            "cpu_kernels='onednn' is for float32 on a CPU, the model's layers are "
            f"{', '.join(kinds) or 'of other kinds'}: leave it out, or load with device='cpu', dtype='float32'"
        )
    worth: dict[tuple[int, int], bool] = {}
    for layer in served:
        shape = layer.in_features, layer.out_features
        try:
            if shape not in worth:
                share = _trial(layer)
                worth[shape] = kernels == "onednn" or share < _WORTH
                logger.info("cpu_kernels: oneDNN takes %.2f of the time for %d × %d", share, *shape)
            if worth[shape]:
                _pack(layer)
        except (AttributeError, RuntimeError) as error:
            if kernels == "onednn":
                raise ValueError(
                    f"cpu_kernels='onednn' does not work with torch {torch.__version__}: {error}"
                ) from error
            logger.warning("cpu_kernels: torch %s cannot pack weights (%s)", torch.__version__, error)
            return


def _pack(layer: torch.nn.Linear) -> PackedLinear:
    layer.__class__ = PackedLinear
    packed = cast("PackedLinear", layer)
    packed.pack()
    return packed


def _trial(layer: torch.nn.Linear) -> float:
    """Return oneDNN's time as a share of the default's for a few rows, and see that both agree."""
    rows = torch.randn(_ROWS, 1, layer.in_features, generator=torch.Generator().manual_seed(0))
    packed = _pack(copy.copy(layer))
    expected, found = layer(rows), packed(rows)
    if not torch.allclose(found, expected, rtol=0, atol=_TOLERANCE * float(expected.abs().max())):
        raise RuntimeError(f"its product of {layer.in_features} × {layer.out_features} is wrong")
    fastest = {}
    for each in (layer, packed):
        times = []
        for _ in range(_TIMES):
            start = time.perf_counter()
            each(rows)
            times.append(time.perf_counter() - start)
        fastest[each] = min(times)
    return fastest[packed] / fastest[layer]
