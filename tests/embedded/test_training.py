from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import torch
from transformers import M2M100ForConditionalGeneration, M2M100Tokenizer

from evaluation.training.train_translator import batch_loss
from evaluation.training.trainer import Muon, Trainer, build_optimisers, orthogonalise
from evaluation.training.translation import Bitext


def test_orthogonalise_approaches_the_polar_factor() -> None:
    generator = torch.Generator().manual_seed(0)
    matrices = torch.randn(3, 8, 12, generator=generator)
    u, _, vh = torch.linalg.svd(matrices, full_matrices=False)
    torch.testing.assert_close(orthogonalise(matrices, steps=5), u @ vh, atol=0.15, rtol=0)


def test_muon_moves_by_the_rate_along_the_polar_factor() -> None:
    parameter = torch.nn.Parameter(torch.zeros(6, 4))
    gradient = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    parameter.grad = gradient.clone()
    Muon([parameter], lr=0.1, steps=5).step()
    u, _, vh = torch.linalg.svd(gradient, full_matrices=False)
    torch.testing.assert_close(parameter.detach(), -0.1 * (6 / 4) ** 0.5 * (u @ vh), atol=0.02, rtol=0)


def test_muon_minimises_a_least_squares_problem() -> None:
    generator = torch.Generator().manual_seed(2)
    wanted = torch.randn(5, 7, generator=generator)
    parameter = torch.nn.Parameter(torch.zeros(5, 7))
    optimiser = Muon([parameter], lr=0.1)
    for step in range(200):
        optimiser.param_groups[0]["lr"] = 0.1 * (1 - step / 200)
        optimiser.zero_grad()
        (parameter - wanted).square().sum().backward()
        optimiser.step()
    error = (parameter.detach() - wanted).square().sum()
    assert float(error) < 0.01 * float(wanted.square().sum())


def test_every_parameter_has_one_optimiser(
    translator: M2M100ForConditionalGeneration, training_options: Namespace
) -> None:
    optimisers = build_optimisers(translator, training_options)
    held = [id(p) for optimiser in optimisers for group in optimiser.param_groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in translator.parameters())


def test_training_lowers_the_loss(
    translator: M2M100ForConditionalGeneration,
    tokenizer: M2M100Tokenizer,
    pairs: list[tuple[str, str]],
    training_options: Namespace,
    tmp_path: Path,
) -> None:
    data = Bitext(pairs, tokenizer)
    everything = data.plan(0, 0, 10_000)[0]

    def loss() -> float:
        with torch.no_grad():
            total, count = batch_loss(translator, data.batch(everything))
        return float(total) / count

    before = loss()
    training_options.steps = 105
    trainer = Trainer(translator, lambda batch: batch_loss(translator, batch), training_options)
    trainer.run(lambda epoch: data.plan(1, epoch, 200), data.batch, dict, tmp_path)
    assert loss() < 0.7 * before
    last = json.loads((tmp_path / "curve.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 105
