"""Compares lm-eval's two backends on the same requests: the completions API, and transformers on the same weights.

    python lm_eval_likelihoods.py URL MODEL FOLDER

Runs in lm-eval's own environment. Reads a JSON list of [context, continuation] from standard input, prints one of
{"served": [[logprob, is_greedy], ...], "expected": the same}.
"""

import json
import sys

import torch
import transformers
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.models.openai_completions import LocalCompletionsAPI


def main(url: str, model: str, folder: str) -> None:
    pairs = json.load(sys.stdin)
    requests = [Instance("loglikelihood", {}, (context, rest), index) for index, (context, rest) in enumerate(pairs)]
    # lm-eval's own loader looks for a class of text alone, which this architecture has not.
    theirs = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    reference = HFLM(pretrained=theirs, tokenizer=tokenizer, backend="causal", device="cpu", batch_size=1)
    api = LocalCompletionsAPI(
        base_url=f"{url}/v1/completions", model=model, tokenizer=folder, num_concurrent=4, max_retries=1
    )
    print(json.dumps({"served": api.loglikelihood(requests), "expected": reference.loglikelihood(requests)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
