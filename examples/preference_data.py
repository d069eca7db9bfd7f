"""Preference pairs for DPO from MBR's ranking. Training on them needs TRL: pip install trl

    python examples/preference_data.py                      # makes pairs with the embedded translator and shows them
    python examples/preference_data.py --train MODEL        # and trains a causal model on them, a few steps

`acpmbr translate --format preferences` and `acpmbr rerank --format preferences` write such pairs for a whole file.
"""

from __future__ import annotations

import argparse
import tempfile

from datasets import Dataset

from hf_acpmbr import ACPMBR, load_model

SOURCES = [
    "Good morning!",
    "Tom is reading a book.",
    "It has been raining since yesterday.",
    "Where did you buy these shoes?",
    "The children are playing in the garden.",
    "I would like a cup of coffee.",
    "She forgot to close the window.",
    "We will see each other tomorrow.",
]


def train(model: str, pairs: Dataset, steps: int) -> None:
    """Train a few steps with TRL, and show how far the model tells chosen from rejected."""
    from trl import DPOConfig, DPOTrainer

    with tempfile.TemporaryDirectory() as folder:
        config = DPOConfig(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=4,
            learning_rate=1e-3,  # for a tiny model; 1e-6 to 1e-5 is usual
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            bf16=False,
        )
        trainer = DPOTrainer(model=model, args=config, train_dataset=pairs)
        trainer.train()
    logged = [entry for entry in trainer.state.log_history if "rewards/margins" in entry]
    for entry in (logged[0], logged[-1]):
        print(f"step {entry['step']}: margin of the rewards {float(entry['rewards/margins']):.3f}")


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--conversational", action="store_true", help="TRL's format of messages")
parser.add_argument("--train", metavar="MODEL", help="hub id or folder of a causal model to train with DPO")
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--num-candidates", type=int, default=64)
args = parser.parse_args()

model, tokenizer, language = load_model("embedded", source_language="en", target_language="de")
mbr = ACPMBR(tokenizer, target="embedded", distilled="embedded-d1", num_candidates=args.num_candidates)
function = mbr.map_fn(model, preferences={"conversational": args.conversational}, generate=language)
pairs = Dataset.from_dict({"source": SOURCES}).map(function, batched=True, batch_size=8)
print(f"{len(pairs)} pairs of {len(SOURCES)} sources, columns {pairs.column_names}")
for row in pairs:
    print(f"  {row['chosen']} > {row['rejected']} (margin {row['margin']:.2f})")
if args.train:
    train(args.train, pairs.select_columns(["prompt", "chosen", "rejected"]), args.steps)
