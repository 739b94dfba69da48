"""Train the small model that ships with TrnRT, from nothing, on text this script writes itself.

    python scripts/train_demo.py --steps 330 [--resume] [--files-only]

Everything is seeded; a run that was stopped goes on with --resume from its last checkpoint (one a minute). The learning
rate is flat up to half of --steps and falls from there, so a run can still be made longer before that point. The
forward pass is the one that serves (`sequence_layer`, the chunk form), its parts compiled once each. The loss is that
of the next token plus, with a smaller weight, that of the MTP layer's guess at the token after it.

A step frees and takes hundreds of megabytes: where the C library gives memory back to the system at once, page faults
cost a quarter of the time. MALLOC_MMAP_THRESHOLD_=2000000000 MALLOC_TRIM_THRESHOLD_=8000000000 avoids that.
"""

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

from graphs.config import Config  # noqa: E402
from graphs.parameters import fuse, init_weights  # noqa: E402
from graphs.weights import save_checkpoint  # noqa: E402
from scripts.demo_batches import Batch, Batches  # noqa: E402
from scripts.demo_folder import model_config, write_folder  # noqa: E402
from scripts.demo_losses import LossOf, losses  # noqa: E402
from scripts.demo_optimizer import Parameters  # noqa: E402

FILES = ROOT / "trnrt" / "models" / "demo_files"
MTP_WEIGHT = 0.2
OTHER_WEIGHT = 0.1
CHECKPOINT_EVERY_S = 60.0
WARMUP_STEPS = 30
COOL_DOWN_SHARE = 0.5


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    if not (FILES / "tokenizer.json").exists() or args.files_only:
        write_folder(FILES, args.seed)
    if args.files_only:
        return
    tokenizer = Tokenizer.from_file(str(FILES / "tokenizer.json"))
    batches = Batches(tokenizer, args.seed, args.rows, args.row_tokens, OTHER_WEIGHT)
    train(args, batches)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=330, help="updates in all")
    parser.add_argument("--rows", type=int, default=8, help="rows in a batch")
    parser.add_argument("--row-tokens", type=int, default=512, help="tokens in a row, a multiple of 64")
    parser.add_argument("--seed", type=int, default=1, help="seed of text and initial weights")
    parser.add_argument("--threads", type=int, default=2, help="compute threads")
    parser.add_argument("--muon-rate", type=float, default=0.02, help="peak step of matrices")
    parser.add_argument("--adam-rate", type=float, default=0.004, help="peak step of everything else")
    parser.add_argument("--eager", action="store_true", help="do not compile (slower, no compiler needed)")
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint")
    parser.add_argument("--files-only", action="store_true", help="write tokenizer and configs, do not train")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "demo", help="folder of checkpoints")
    return parser.parse_args()


def train(args: argparse.Namespace, batches: Batches) -> None:
    config = Config.from_json(model_config())
    parameters = Parameters(init_weights(config, args.seed))
    args.work.mkdir(parents=True, exist_ok=True)
    checkpoint = args.work / "checkpoint.pt"
    done, tokens_seen = 0, 0
    if args.resume and checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        parameters.load(state["parameters"])
        done, tokens_seen = state["step"], state["tokens"]
    loss_of = losses(config, compiled=not args.eager)
    total = sum(group.value.numel() for group in parameters.groups)
    print(f"{total / 1e6:.2f} M parameters, step {done} of {args.steps}", flush=True)
    saved_at = time.monotonic()
    for step in range(done, args.steps):
        started = time.monotonic()
        batch = batches.at(step)
        loss, draft_loss = update(config, parameters, batch, loss_of, args, step)
        tokens_seen += batch.ids.size
        now = time.monotonic()
        if step % 10 == 0 or step == args.steps - 1:
            record = {
                "step": step, "loss": round(loss, 4), "mtp_loss": round(draft_loss, 4), "tokens": tokens_seen,
                "tokens_per_s": round(batch.ids.size / (now - started)),
            }  # fmt: skip
            print(json.dumps(record), flush=True)
        if now - saved_at > CHECKPOINT_EVERY_S or step == args.steps - 1:
            saved_at = now
            save(checkpoint, parameters, step + 1, tokens_seen)
    export(parameters)


def update(
    config: Config, parameters: Parameters, batch: Batch, loss_of: LossOf, args: argparse.Namespace, step: int
) -> tuple[float, float]:
    """Take one step and return the two losses."""
    named = parameters.named()
    weights = fuse(config, named.__getitem__, torch.bfloat16)
    loss, draft_loss = loss_of(weights, torch.from_numpy(batch.ids), torch.from_numpy(batch.weights))
    (loss + MTP_WEIGHT * draft_loss).backward()
    rate = schedule(step, args.steps)
    parameters.step(step + 1, args.muon_rate * rate, args.adam_rate * rate, max_norm=1.0)
    return loss.item(), draft_loss.item()


def schedule(step: int, total: int) -> float:
    """Return the factor on the learning rates: warm up, hold, cool down along a cosine to almost nothing."""
    if step < WARMUP_STEPS:
        return (step + 1) / WARMUP_STEPS
    start = total * (1 - COOL_DOWN_SHARE)
    if step < start:
        return 1.0
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - start) / (total - start)))


def save(path: Path, parameters: Parameters, step: int, tokens: int) -> None:
    """Write a checkpoint beside the old one, then put it in its place."""
    fresh = path.with_suffix(".new")
    torch.save({"parameters": parameters.state(), "step": step, "tokens": tokens}, fresh)
    fresh.replace(path)


def export(parameters: Parameters) -> None:
    """Write the shipped model.safetensors: bf16, real names."""
    tensors = {name: tensor.detach() for name, tensor in parameters.named().items()}
    save_checkpoint(FILES, model_config(), tensors)


if __name__ == "__main__":
    main()
