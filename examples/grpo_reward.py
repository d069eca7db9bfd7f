"""Agreement as a reward for GRPO: train a model so that one sample is worth what MBR chooses. Needs: pip install trl

    python examples/grpo_reward.py                          # the rewards of two groups of texts
    python examples/grpo_reward.py --train MODEL            # a few steps of GRPO with them on a causal model

The reward of a completion is its expected utility against the *other* completions of its prompt. Its score against
itself is left out, so that a text that nobody agrees with gains nothing from being its own reference.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import numpy as np
from datasets import Dataset

from hf_acpmbr import ACPMBR

GROUPS = {
    "Translate: Der Hund schläft.": ["The dog sleeps.", "The dog is sleeping.", "The dog sleeps.", "A cat runs."],
    "Translate: Es regnet.": ["It is raining.", "It rains.", "Rain.", "It is raining."],
}


class Agreement:
    """A reward function for TRL's trainers: leave-one-out expected utility among the completions of a prompt."""

    __name__ = "agreement"  # TRL logs the reward under it

    def __init__(self, target: str = "chrf") -> None:
        self.mbr = ACPMBR(target=target, decoder="mbr")

    def __call__(self, prompts: list[Any], completions: list[Any], **columns: object) -> list[float]:
        texts = [given if isinstance(given, str) else given[-1]["content"] for given in completions]
        groups: dict[str, list[int]] = {}
        for k, prompt in enumerate(prompts):
            groups.setdefault(str(prompt), []).append(k)
        if alone := [prompt for prompt, members in groups.items() if len(members) < 2]:
            raise ValueError(f"a prompt needs at least two completions to agree with each other: {alone[0]!r} has one")
        rewards = np.zeros(len(texts))
        decisions = self.mbr.rerank_many([[texts[k] for k in members] for members in groups.values()])
        for members, decision in zip(groups.values(), decisions, strict=True):
            sign = 1.0 if decision.higher_is_better else -1.0
            rows = [decision.candidates.texts.index(texts[k]) for k in members]
            total = decision.expected[rows] * len(members) - decision.matrix[rows, rows]
            rewards[members] = sign * total / (len(members) - 1)
        return rewards.tolist()


def train(model: str, steps: int) -> None:
    """Train a few steps, and show the mean reward of each."""
    from trl import GRPOConfig, GRPOTrainer

    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            max_steps=steps,
            num_generations=4,
            per_device_train_batch_size=8,
            max_completion_length=16,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            bf16=False,
        )
        prompts = Dataset.from_dict({"prompt": list(GROUPS)})
        trainer = GRPOTrainer(model=model, reward_funcs=Agreement(), args=config, train_dataset=prompts)
        trainer.train()
    for entry in trainer.state.log_history:
        if "reward" in entry:
            print(f"step {entry['step']}: mean reward {float(entry['reward']):.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", metavar="MODEL", help="hub id or folder of a causal model to train")
    parser.add_argument("--steps", type=int, default=2)
    args = parser.parse_args()
    for prompt, texts in GROUPS.items():
        print(prompt)
        for text, reward in zip(texts, Agreement()([prompt] * len(texts), texts), strict=True):
            print(f"  {reward:5.1f}  {text}")
    if args.train:
        train(args.train, args.steps)
