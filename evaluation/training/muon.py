"""Muon in any precision: momentum whose matrix is replaced by its nearest orthogonal one (Jordan et al. 2024).

torch's own Muon orthogonalises in bfloat16, which processors without bf16 units emulate about a hundred times slower.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

import torch

# Quintics a·x + b·x³ + c·x⁵ whose composition drives singular values in (0.001, 1] towards 1 as fast as this degree
# allows ("Polar Express", Amsel et al. 2025, arXiv 2505.16932).
POLAR_QUINTICS = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
)


def orthogonalise(matrices: torch.Tensor, steps: int) -> torch.Tensor:
    """Approximate polar factors of a stack of matrices, shape (K, m, n) with m <= n."""
    x: torch.Tensor = matrices / (1.01 * matrices.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for a, b, c in POLAR_QUINTICS[:steps]:
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum for matrices; equal shapes are orthogonalised as one stack."""

    def __init__(
        self,
        params: Iterable[torch.Tensor],
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        steps: int = 3,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "steps": steps})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            stacks: dict[tuple[int, int], list[tuple[torch.Tensor, torch.Tensor]]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                buffer = state.setdefault("momentum", torch.zeros_like(parameter))
                buffer.lerp_(parameter.grad, 1 - group["momentum"])
                update = parameter.grad.lerp(buffer, group["momentum"])
                wide = update if update.shape[0] <= update.shape[1] else update.mT
                stacks[tuple(wide.shape)].append((parameter, wide))
            for pairs in stacks.values():
                stack = torch.stack([wide for _, wide in pairs]).to(self.dtype)
                polar = orthogonalise(stack, group["steps"]).float()
                for (parameter, _), update in zip(pairs, polar, strict=True):
                    rows, columns = parameter.shape
                    change = update if rows <= columns else update.mT
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.add_(change, alpha=-group["lr"] * max(1.0, rows / columns) ** 0.5)
