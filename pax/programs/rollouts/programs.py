# SPDX-License-Identifier: Apache-2.0
"""Training on samples of the model, with the rewards of an input."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Bool, Float32
from typing_extensions import override

from pax import partitioning, steps, tasks_lib
from pax.inputs import prefetch
from pax.programs import decode, metric_accumulator, program, train_program
from pax.programs.rollouts import (
  rollout_batches,
  rollout_records,
  rollout_sampling,
)
from pax.programs.stopping import preemption
from pax.steps import Batch, StepOutput
from praxis.base_input.rewards import REWARD, REWARD_STD

if TYPE_CHECKING:
  # Only experiments of text need them.
  from pax.inputs.text import rewarded_prompts

NestedMap = program.NestedMap
TrainState = program.TrainState

# Settings of `task.train`, in steps, at which a job may be saved.
_INTERVALS = (
  'num_train_steps',
  'save_interval_steps',
  'eval_interval_steps',
  'decode_interval_steps',
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Rollout:
  """What a policy has sampled."""

  # The batches of this process, each of one update and epoch.
  batches: Sequence[NestedMap] = ()
  # (mean over the samples of all processes, their number) by name.
  metrics: Mapping[str, tuple[np.floating, np.floating]] = dataclasses.field(
    default_factory=dict
  )


class RolloutTrainProgram(train_program.SingleTaskTrainProgram):
  """Samples responses to the prompts of a batch, and learns from the rewards.

  The input is a RewardedPromptInput, the model a LanguageModelGRPO. A rollout
  samples from the policy at the temperature of the model, and rewards the
  responses on the host, each process those of its rows. Their
  advantages are how much the rewards are above the mean of the samples of the
  same prompt, in their standard deviations. Each batch of a rollout is an
  update, `rollout_epochs` times; the next rollout is that of the new policy.

  References:
    https://arxiv.org/abs/2402.03300
  """

  def __init__(
    self,
    *,
    normalizes_deviation: bool = True,
    masks_truncated: bool = False,
    penalized_tokens: int = 0,
    top_k: int = 0,
    top_p: float = 1.0,
  ):
    """Makes the program.

    Args:
      normalizes_deviation: Whether advantages are divided by the standard
        deviation of the rewards of the prompt; not in Dr. GRPO
        (arXiv:2503.20783).
      masks_truncated: Whether nothing is learned from responses without eos,
        which have reached the largest length ("overlong filtering" of DAPO,
        arXiv:2503.14476). Others are still compared with their rewards.
      penalized_tokens: Number of the last possible tokens of a response over
        which its reward falls by 1; 0: none.
      top_k: Number of the most probable tokens to sample from; 0: all.
      top_p: Total probability of those of them to sample from.
    """
    super().__init__()
    self._normalizes_deviation = normalizes_deviation
    self._masks_truncated = masks_truncated
    self._penalized_tokens = penalized_tokens
    self._top_k, self._top_p = top_k, top_p
    self._rollout = _Rollout()

  @property
  @override
  def reads_host_batches(self) -> bool:
    """Returns True: the batches of a rollout are sampled as one."""
    return True

  @override
  def setup(
    self,
    task: tasks_lib.SingleTask,
    train_input: train_program.TrainInput,
    *args: Any,
    **kwargs: Any,
  ) -> None:
    """Sets the program up; see `BaseTrainProgram.setup`.

    Raises:
      ValueError: The last step, a checkpoint or an evaluation is within a
        rollout.
    """
    super().setup(task, train_input, *args, **kwargs)
    num_updates = self._input.updates_per_rollout
    for name in _INTERVALS:
      value = getattr(task.train, name)
      if value and value % num_updates:
        raise ValueError(
          f'task.train.{name} must be a multiple of {num_updates}, the number'
          f' of updates of a rollout, got {value}; change it, ROLLOUT_BATCHES'
          ' or ROLLOUT_EPOCHS'
        )

  @override
  def steps_besides_update(
    self,
    partitioner: partitioning.Partitioner,
    train_input_p: program.InputConfig,
  ) -> Mapping[str, partitioning.PartitionedStep]:
    """Returns the step that samples a rollout."""
    step = self._create_sample_step(partitioner.task, train_input_p)
    prompts = rollout_sampling.prompt_spec(
      partitioner.input_spec, train_input_p.rollout_batches
    )
    return {'sampling': partitioner.step_for(step, prompts)}

  @override
  def is_resumable(self, step: int) -> bool:
    """Returns whether `step` begins with a rollout: samples are not saved."""
    is_first = step == self._initial_step
    return is_first or step % self._input.updates_per_rollout == 0

  @override
  def train_step(
    self,
    step: int,
    state: TrainState,
    prng_key: jax.Array,
    inputs: Batch,
    static_args: program.BaseStepFnStaticArgs,
  ) -> tuple[int, TrainState, StepOutput]:
    """Runs the compiled train step; adds the metrics of its rollout."""
    new_step, state, output = super().train_step(
      step, state, prng_key, inputs, static_args
    )
    # They are on the host already, unlike the scalars of the step.
    arrays = {**output.weighted_arrays, **self._rollout.metrics}
    output = dataclasses.replace(output, weighted_arrays=arrays)
    return new_step, state, output

  @override
  def run_eval_train(self, state: TrainState) -> StepOutput | None:
    """Returns None: a batch of prompts has no responses to evaluate."""
    del state
    return None

  @override
  def headline_metrics(
    self, output: program.TrainProgramOutput
  ) -> Mapping[str, ArrayLike]:
    """Returns the mean reward."""
    scalars = output.weighted_scalars or {}
    return {name: x for name, (x, _) in scalars.items() if name == REWARD}

  @property
  def _input(self) -> rewarded_prompts.RewardedPromptInput:
    source = prefetch.source_of(self._train_input)
    return cast('rewarded_prompts.RewardedPromptInput', source)

  @override
  def _next_batch(self, state: TrainState, step: int) -> Batch:
    """Returns a batch of the rollout, made by `state` if the last is used up.

    A job that stopped within a rollout makes the rest of its updates with
    samples of the policy at which it stopped.
    """
    position = step % self._input.updates_per_rollout
    if position == 0 or not self._rollout.batches:
      self._rollout = self._roll_out(state.to_eval_state(), step)
    batches = self._rollout.batches
    return self._partitioner.put_batch(batches[position % len(batches)])

  def _roll_out(self, state: TrainState, step: int) -> _Rollout:
    inp = self._input
    samples = self._sample(state, self._next_prompts())
    responses = inp.ids_to_strings(
      samples.responses(), samples.response_lengths
    )
    rewards = self._rewards(samples, responses)
    self._record(step, samples, responses, rewards)
    deviations = rollout_batches.deviations(rewards[REWARD], inp.num_samples)
    values = rollout_batches.advantages(
      rewards[REWARD],
      inp.num_samples,
      deviations if self._normalizes_deviation else None,
    )
    batch = rollout_batches.train_batch(samples, values)
    if self._masks_truncated:
      batch.weights[self._is_truncated(samples)] = 0.0
    batches = rollout_batches.split(batch, inp.rollout_batches)
    if inp.updates_per_rollout > 1:
      for batch in batches:
        batch.old_log_probs = self._log_probs(state, batch)
    metrics = self._metrics(samples, {**rewards, REWARD_STD: deviations})
    return _Rollout(batches=batches, metrics=metrics)

  def _rewards(
    self, samples: rollout_batches.Samples, responses: Sequence[str]
  ) -> dict[str, Float32[np.ndarray, ' B']]:
    """Returns the rewards of samples, and their terms by name."""
    inp = self._input
    rewards = inp.rewards(samples.prompt_index, responses)
    if not self._penalized_tokens:
      return rewards
    penalties = rollout_batches.length_penalties(
      samples.response_lengths,
      inp.seq_len - inp.max_prompt_len,
      self._penalized_tokens,
    )
    total = rewards[REWARD] + penalties
    return {**rewards, REWARD: total, 'length_penalty': penalties}

  def _next_prompts(self) -> NestedMap:
    """Returns the prompts of a rollout of this process, each with its number.

    Samples depend on the number, not on the process or device.
    """
    inp = self._input
    num_rows = inp.get_batch_size(inp)
    state = self._train_input.get_state()
    batches = []
    try:
      for index in range(inp.rollout_batches):
        batch = self._train_input.get_next_padded()
        first = index * inp.num_infeed_hosts + inp.infeed_host_index
        batch.row = np.arange(num_rows, dtype=np.int32) + first * num_rows
        batches.append(batch)
    except preemption.PreemptedError:
      # The job continues with all batches of the rollout.
      self._train_input.set_state(state)
      raise
    return jax.tree.map(lambda *rows: np.concatenate(rows), *batches)

  def _sample(
    self, state: TrainState, prompts: NestedMap
  ) -> rollout_batches.Samples:
    """Returns a response to each prompt of this process."""
    batch = self._partitioner.put_batch(prompts)
    sample = self._partitioner.step_for(self._sample_step, batch)
    output = sample(state, batch, self._train_prng_seed)
    return rollout_batches.Samples(**self._own_rows(output, len(prompts.ids)))

  def _log_probs(
    self, state: TrainState, batch: NestedMap
  ) -> Float32[np.ndarray, 'B T']:
    """Returns those of the labels of a batch of this process."""
    # A model without advantages applies no reference.
    rows = NestedMap({k: x for k, x in batch.items() if k != 'advantages'})
    rows = self._partitioner.put_batch(rows)
    step = self._partitioner.step_for(steps.token_log_probs_step, rows)
    output = step(state, rows, self._train_prng_seed)
    return self._own_rows(output, len(batch.ids)).token_log_probs

  def _own_rows(self, output: StepOutput, num_rows: int) -> NestedMap:
    """Returns the rows of this process of the outputs per example."""
    rows = metric_accumulator.gather_to_host(output.per_example_out)
    first = self._input.infeed_host_index * num_rows
    return rows.Transform(lambda x: x[first : first + num_rows])

  @functools.cached_property
  def _sample_step(self) -> rollout_sampling.SampleStep:
    return self._create_sample_step(self._task, self._input)

  def _create_sample_step(
    self, task: tasks_lib.SingleTask, inp: rollout_sampling.PromptSizes
  ) -> rollout_sampling.SampleStep:
    return rollout_sampling.SampleStep.create(
      task, inp, top_k=self._top_k, top_p=self._top_p
    )

  def _metrics(
    self,
    samples: rollout_batches.Samples,
    rewards: Mapping[str, Float32[np.ndarray, ' _']],
  ) -> dict[str, tuple[np.floating, np.floating]]:
    """Returns (mean over the samples of all processes, their number).

    Args:
      samples: The samples of this process.
      rewards: Their rewards, the terms, and the deviations of prompts.
    """
    # These prompts teach nothing.
    is_equal = rewards[REWARD_STD] == 0
    rows = metric_accumulator.gather_to_host(
      {
        **rewards,
        'response_length': samples.response_lengths.astype(np.float32),
        'truncated': self._is_truncated(samples).astype(np.float32),
        'prompts_with_equal_rewards': is_equal.astype(np.float32),
      }
    )
    return {
      name: (np.float32(x.mean()), np.float32(len(x)))
      for name, x in rows.items()
    }

  def _is_truncated(
    self, samples: rollout_batches.Samples
  ) -> Bool[np.ndarray, ' B']:
    return ~np.isin(samples.last_ids, self._sample_step.eos_ids)

  def _record(
    self,
    step: int,
    samples: rollout_batches.Samples,
    responses: Sequence[str],
    rewards: Mapping[str, Float32[np.ndarray, ' B']],
  ) -> None:
    """Writes some samples, if summaries are due within the rollout."""
    last = step + self._input.updates_per_rollout
    is_due = any(map(self._reporter.is_summary_due, range(step, last)))
    if not is_due or jax.process_index() != 0:
      return
    prompts = self._input.ids_to_strings(samples.ids, samples.prompt_lengths)
    rollout_records.write(
      self._job_log_dir,
      step,
      list(zip(prompts, responses, strict=True)),
      rewards,
      is_truncated=self._is_truncated(samples),
      num_samples=self._input.num_samples,
    )


class RewardDecodeProgram(decode.SingleTaskDecodeProgram):
  """Decodes an input, and shows the mean rewards of its responses.

  The input is a RewardedPromptInput, or has prompts without rewards.
  """

  @override
  def headline_metrics(
    self, output: program.DecodeProgramOutput
  ) -> Mapping[str, float]:
    """Returns the mean reward of the responses."""
    metrics = output.processed_decode_metrics or {}
    return {k: x for k, x in metrics.items() if k.startswith(REWARD)}
