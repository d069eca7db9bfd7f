"""Training data from MBR: preference pairs for DPO with TRL, and MBR's choices as targets for Seq2SeqTrainer.

The embedded translator makes the data. DPO then trains a causal model, by default a tiny untrained one, so that a few
steps run anywhere; distillation trains the translator itself:

    pip install trl && python examples/preference_data.py --train dpo
    python examples/preference_data.py --train distill

`acpmbr translate --format preferences` and `acpmbr rerank --format preferences` write such pairs for a whole file.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

from datasets import Dataset

from hf_acpmbr import ACPMBR
from hf_acpmbr.generation.corpus import decide_texts
from hf_acpmbr.generation.models import load_model
from hf_acpmbr.generation.preferences import distillation_rows

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
PROMPT = "Translate into German: {source}"


def make_pairs(args: argparse.Namespace, mbr: ACPMBR, model: Any, generate: dict[str, Any]) -> Dataset:
    """Return a row per pair: TRL's prompt, chosen, rejected, with expected utilities and margin."""
    function = mbr.map_fn(model, preferences={"conversational": args.conversational}, generate=generate)
    pairs = Dataset.from_dict({"source": SOURCES}).map(function, batched=True, batch_size=8)
    # The translator reads the bare sentence; a language model has to be told what to do with it.
    asked = [PROMPT.replace("{source}", source) for source in pairs["source"]]
    prompts = [[{"role": "user", "content": text}] for text in asked] if args.conversational else asked
    return pairs.remove_columns("prompt").add_column("prompt", prompts)


def causal_model(texts: list[str]) -> tuple[Any, Any]:
    """A tiny untrained model, and a tokenizer trained on the texts."""
    import tokenizers
    import transformers

    core = tokenizers.Tokenizer(tokenizers.models.BPE())
    core.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = tokenizers.decoders.ByteLevel()
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        texts,
        tokenizers.trainers.BpeTrainer(
            vocab_size=400, special_tokens=["<pad>", "<s>", "</s>"], initial_alphabet=letters, show_progress=False
        ),
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        chat_template="{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}</s>{% endfor %}"
        "{% if add_generation_prompt %}<s>assistant\n{% endif %}",
    )
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return transformers.LlamaForCausalLM(config), tokenizer


def train_dpo(args: argparse.Namespace, pairs: Dataset, folder: str) -> None:
    """A few steps of TRL's DPOTrainer on the pairs."""
    import transformers
    from trl import DPOConfig, DPOTrainer

    transformers.set_seed(0)
    name = args.dpo_model
    if name is None:
        name = f"{folder}/untrained"  # a folder, since TRL loads the reference model from where the model came from
        for part in causal_model([str(row[column]) for row in pairs for column in ("prompt", "chosen", "rejected")]):
            part.save_pretrained(name)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(name)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(name)
    config = DPOConfig(
        output_dir=folder,
        max_steps=args.steps,
        per_device_train_batch_size=4,
        learning_rate=1e-5 if args.dpo_model else 1e-3,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=not args.gpu,
        bf16=args.gpu,
        disable_tqdm=True,
    )
    trainer = DPOTrainer(model=model, args=config, train_dataset=pairs, processing_class=tokenizer)
    trainer.train()
    steps = [entry for entry in trainer.state.log_history if "rewards/margins" in entry]
    for entry in (steps[0], steps[-1]):
        loss, margin = float(entry["loss"]), float(entry["rewards/margins"])
        print(f"step {entry['step']}: loss {loss:.3f}, margin of the rewards {margin:.3f}")


def train_distillation(args: argparse.Namespace, rows: Dataset, model: Any, tokenizer: Any, folder: str) -> None:
    """A few steps of Seq2SeqTrainer with MBR's choices as targets."""
    import transformers

    tokenizer.tgt_lang = "de"
    data = rows.map(
        lambda batch: tokenizer(batch["source"], text_target=batch["target"]),
        batched=True,
        remove_columns=rows.column_names,
    )
    config = transformers.Seq2SeqTrainingArguments(
        output_dir=folder,
        max_steps=args.steps,
        per_device_train_batch_size=4,
        learning_rate=1e-4,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=not args.gpu,
        disable_tqdm=True,
    )
    collator = transformers.DataCollatorForSeq2Seq(tokenizer, model=model)
    trainer = transformers.Seq2SeqTrainer(model=model, args=config, train_dataset=data, data_collator=collator)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print(f"distillation: loss {losses[0]:.3f} at the first step, {losses[-1]:.3f} at step {len(losses)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversational", action="store_true", help="TRL's format of messages")
    parser.add_argument("--train", choices=("dpo", "distill"), help="what to train with the data; default: nothing")
    parser.add_argument("--dpo-model", help="hub id or folder of a causal model; default: a tiny untrained one")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--gpu", action="store_true", help="train on a GPU")
    parser.add_argument("--num-candidates", type=int, default=64)
    args = parser.parse_args()

    model, tokenizer, language = load_model("embedded")
    mbr = ACPMBR(tokenizer, target="embedded", distilled="auto", num_candidates=args.num_candidates)
    generate = {"max_new_tokens": 48, **language}
    if args.train == "distill":
        decided = decide_texts(mbr, model, SOURCES, generate=generate)
        rows = Dataset.from_dict(distillation_rows(SOURCES, decided.decisions))
        print(f"{len(rows)} rows: {rows[1]}")
        with tempfile.TemporaryDirectory() as folder:
            train_distillation(args, rows, model, tokenizer, folder)
        return
    pairs = make_pairs(args, mbr, model, generate)
    print(f"{len(pairs)} pairs of {len(SOURCES)} sources, columns {pairs.column_names}")
    for row in pairs.select(range(min(3, len(pairs)))):
        print(f"  {row['chosen']} > {row['rejected']} (margin {row['margin']:.2f})")
    if args.train == "dpo":
        with tempfile.TemporaryDirectory() as folder:
            train_dpo(args, pairs, folder)


if __name__ == "__main__":
    main()
