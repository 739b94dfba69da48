"""What is told beside a sampled token's own logprob: the best ids, and those that the choice names. Core."""

from graphs.step import StepOutput
from stages.messages import Submit


def best_of(submit: Submit, index: int, output: StepOutput) -> tuple[tuple[tuple[int, float], ...], ...]:
    """Return the row's best ids with their logprobs as wanted, one entry a sampled token."""
    if output.top_ids is None or output.top_logprobs is None:
        return ()
    ids = output.top_ids[index, : submit.num_top_logprobs].tolist()
    return (tuple(zip(ids, output.top_logprobs[index, : submit.num_top_logprobs].tolist(), strict=True)),)


def wanted_of(submit: Submit, index: int, output: StepOutput) -> tuple[tuple[float, ...], ...]:
    """Return the logprobs of the ids that the row names, one entry a sampled token."""
    assert output.wanted is not None, "the caller looked"
    return (tuple(output.wanted[index, : len(submit.logprob_token_ids)].tolist()),)
