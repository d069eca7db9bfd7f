"""Candidates of vLLM: it draws for all prompts in one batch, and `rerank_many` chooses.

Needs vLLM, from the wheel for your device: https://docs.vllm.ai/en/latest/getting_started/installation/
python examples/vllm_candidates.py --model HuggingFaceTB/SmolLM2-135M-Instruct
"""

from __future__ import annotations

import argparse

from vllm import LLM, SamplingParams

from hf_acpmbr import ACPMBR, Candidates

PROMPTS = ["What is the capital of France?", "Say in one sentence what rain is.", "Why do cats purr?"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M-Instruct", help="hub id or folder")
    parser.add_argument("--dtype", default="auto", help="of the weights: auto, float32, bfloat16")
    parser.add_argument("--target", default="chrf", help="utility that decides (default chrf)")
    parser.add_argument("--num-candidates", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    engine = LLM(args.model, dtype=args.dtype, max_model_len=512, enforce_eager=True, seed=args.seed)
    settings = SamplingParams(
        n=args.num_candidates,
        temperature=0.7,
        min_p=0.05,  # vLLM has no ε-sampling; this cuts off improbable tokens too
        max_tokens=args.max_tokens,
        logprobs=0,  # adds log-probabilities to the candidates
        seed=args.seed,
    )
    outputs = engine.chat([[{"role": "user", "content": prompt}] for prompt in PROMPTS], settings)

    pools = [Candidates.from_vllm(output) for output in outputs]
    for prompt, pool, decision in zip(
        PROMPTS, pools, ACPMBR(target=args.target).rerank_many(pools, sources=PROMPTS), strict=True
    ):
        likely = int(pool.logprobs.argmax())
        print(f"{prompt} ({pool}, {sum(decision.calls.values())} calls)")
        print(f"  chosen         {pool.logprobs[decision.index]:6.1f}  {decision.text!r}")
        print(f"  most probable  {pool.logprobs[likely]:6.1f}  {pool.texts[likely]!r}")


if __name__ == "__main__":  # vLLM may start processes that import this file
    main()
