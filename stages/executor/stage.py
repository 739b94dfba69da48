"""The executor's task: one plan in, one device step, one fact back to the scheduler."""

import trio

from stages.channels import Channels
from stages.executor.runner import Runner
from stages.messages import StepDone, StepFailed


async def run_executor(
    runner: Runner, channels: Channels, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Run every plan until the scheduler closes the channel; closes the runner on its way out.

    Whatever a device raises means it can no longer be trusted with the state it holds: it becomes StepFailed, and it
    is the scheduler that then ends the engine, once every client has been told.
    """
    with channels.plans_receive:
        try:
            task_status.started()
            async for plan in channels.plans_receive:
                fact: StepDone | StepFailed
                try:
                    fact = StepDone(plan.step, await runner.run(plan.input))
                except Exception as error:
                    fact = StepFailed(plan.step, error)
                _post(channels, fact)
        finally:
            await runner.aclose()


def _post(channels: Channels, fact: StepDone | StepFailed) -> None:
    try:
        channels.scheduler_send.send_nowait(fact)
    except trio.BrokenResourceError:
        # The scheduler is gone, so the engine is ending: nobody is left to tell.
        return
