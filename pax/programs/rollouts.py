# SPDX-License-Identifier: Apache-2.0
"""Training on samples of the model, with the rewards of an input."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Bool, Float32, Int32
from typing_extensions import override

from pax import steps
from pax.inputs import prefetch
from pax.programs import (
  decode,
  metric_accumulator,
  program,
  train_program,
)
from pax.steps import Batch, StepOutput
from praxis.decoding import hparams as decoding

if TYPE_CHECKING:
  # Only experiments of text need them.
  from pax.inputs.text import rewarded_prompts

NestedMap = program.NestedMap
TrainState = program.TrainState

# Name of the rewards of an input, and prefix of their terms.
_REWARD = 'reward'
# Folded into the key of a step, so that samples and dropout are independent.
_SAMPLING = 1
# Added to the standard deviation of the rewards of a prompt.
_EPSILON = 1e-4


class Samples(NamedTuple):
  """Prompts with their responses, a row of tokens each."""

  ids: Int32[np.ndarray, 'B T']
  # Number of tokens of each prompt, and with its response.
  prompt_lengths: Int32[np.ndarray, ' B']
  lengths: Int32[np.ndarray, ' B']
  # The prompt of each row in the input.
  prompt_index: Int32[np.ndarray, ' B']

  @property
  def is_token(self) -> Bool[np.ndarray, 'B T']:
    """Whether a position has a token."""
    return np.arange(self.ids.shape[1]) < self.lengths[:, np.newaxis]

  @property
  def response_lengths(self) -> Int32[np.ndarray, ' B']:
    """Number of tokens of each response."""
    return self.lengths - self.prompt_lengths

  def responses(self) -> Int32[np.ndarray, 'B T']:
    """Returns the responses, from the first column on."""
    columns = np.arange(self.ids.shape[1]) + self.prompt_lengths[:, np.newaxis]
    last = self.ids.shape[1] - 1
    return np.take_along_axis(self.ids, np.minimum(columns, last), axis=1)


class RolloutTrainProgram(train_program.SingleTaskTrainProgram):
  """Samples responses to the prompts of a batch, and learns from the rewards.

  The input is a RewardedPromptInput, the model a LanguageModelGRPO. A step
  samples at temperature 1 from the policy, in all of its vocabulary, rewards
  the responses on the host, each process those of its rows, and makes one
  update with their advantages: how much the reward is above the mean of the
  samples of the same prompt, in their standard deviations.

  References:
    https://arxiv.org/abs/2402.03300
  """

  def __init__(self, *, normalizes_deviation: bool = True):
    """Makes the program.

    Args:
      normalizes_deviation: Whether advantages are divided by the standard
        deviation of the rewards of the prompt; not in Dr. GRPO
        (arXiv:2503.20783).
    """
    super().__init__()
    self._normalizes_deviation = normalizes_deviation

  @override
  def train_step(
    self,
    step: int,
    state: TrainState,
    prng_key: jax.Array,
    inputs: Batch,
    static_args: program.BaseStepFnStaticArgs,
  ) -> tuple[int, TrainState, StepOutput]:
    """Samples, rewards the samples, and runs the compiled train step."""
    samples = self._sample(state, inputs, prng_key)
    rewards = self._input.rewards(
      samples.prompt_index,
      self._input.ids_to_strings(samples.responses(), samples.response_lengths),
    )
    values = advantages(
      rewards[_REWARD],
      self._input.num_samples,
      normalizes_deviation=self._normalizes_deviation,
    )
    batch = self._partitioner.put_batch(train_batch(samples, values))
    metrics = self._metrics(samples, rewards)
    new_step, state, output = super().train_step(
      step, state, prng_key, batch, static_args
    )
    # They are on the host already, unlike the scalars of the step.
    output = dataclasses.replace(
      output, weighted_arrays={**output.weighted_arrays, **metrics}
    )
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
    return {name: x for name, (x, _) in scalars.items() if name == _REWARD}

  @property
  def _input(self) -> rewarded_prompts.RewardedPromptInput:
    source = prefetch.source_of(self._train_input)
    return cast('rewarded_prompts.RewardedPromptInput', source)

  def _sample(
    self, state: TrainState, prompts: Batch, key: jax.Array
  ) -> Samples:
    """Returns a response to each prompt of this process."""
    prompts = program.on_mesh(self._partitioner, prompts)
    sample = self._partitioner.step_for(self._sample_step, prompts)
    output = sample(state.to_eval_state(), prompts, key)
    rows = metric_accumulator.gather_to_host(output.per_example_out)
    num_rows = self._input.get_batch_size(self._input)
    first = self._input.infeed_host_index * num_rows
    own = rows.Transform(lambda x: x[first : first + num_rows])
    return Samples(**own)

  @functools.cached_property
  def _sample_step(self) -> functools.partial[steps.StepFnOutput]:
    inp = self._input
    decoder = decoding.SampleDecoderHParams(
      fprop_for_prefix=True,
      max_decode_steps=inp.seq_len - inp.max_prompt_len,
      eos_id=self._eos_ids,
      temperature=1.0,
      k=0,
    )
    return functools.partial(
      _sample_step, decoder_tpl=decoder, max_prompt_len=inp.max_prompt_len
    )

  @property
  def _eos_ids(self) -> list[int]:
    eos_ids = self._task.model.decoder_tpl.eos_id
    return [eos_ids] if isinstance(eos_ids, int) else list(eos_ids)

  def _metrics(
    self, samples: Samples, rewards: Mapping[str, Float32[np.ndarray, ' B']]
  ) -> dict[str, tuple[np.floating, np.floating]]:
    """Returns (mean over the samples of all processes, their number)."""
    last_ids = samples.ids[np.arange(len(samples.ids)), samples.lengths - 1]
    groups = rewards[_REWARD].reshape(-1, self._input.num_samples)
    deviations = groups.std(axis=1, ddof=1)
    rows = metric_accumulator.gather_to_host(
      {
        **rewards,
        'response_length': samples.response_lengths.astype(np.float32),
        'truncated': (~np.isin(last_ids, self._eos_ids)).astype(np.float32),
        f'{_REWARD}_std': deviations,
        # These prompts teach nothing.
        'prompts_with_equal_rewards': (deviations == 0).astype(np.float32),
      }
    )
    return {
      name: (np.float32(x.mean()), np.float32(len(x)))
      for name, x in rows.items()
    }


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
    return {k: x for k, x in metrics.items() if k.startswith(_REWARD)}


def _sample_step(
  settings: steps.StepSettings,
  state: TrainState,
  batch: Batch,
  key: jax.Array,
  *,
  decoder_tpl: decoding.SampleDecoderHParams,
  max_prompt_len: int,
) -> steps.StepFnOutput:
  """Returns `Samples` of the rows of a training batch, which have prompts.

  Args:
    settings: The task whose model samples, and where it runs.
    state: The eval state.
    batch: The global batch; over replicas the batch of one.
    key: PRNG key of the job; `state.step` is folded in.
    decoder_tpl: Settings of sampling.
    max_prompt_len: Number of columns that a prompt may have.
  """
  prompts = NestedMap(
    ids=batch.ids[:, :max_prompt_len],
    paddings=batch.paddings[:, :max_prompt_len],
  )
  key = jax.random.fold_in(key, _SAMPLING)
  output = steps.decode_step(settings, state, prompts, key, decoder_tpl)
  out = output.per_example_out
  rows = NestedMap(
    ids=out.output_ids[:, 0],
    prompt_lengths=jnp.reshape(out.prefix_lengths, (-1,)),
    lengths=out.decode_lengths[:, 0],
    prompt_index=batch.prompt_index,
  )
  return steps.StepFnOutput(
    loss=None,
    weighted_scalars=NestedMap(),
    per_example_out=rows,
    summary_tensors={},
  )


def advantages(
  rewards: Float32[np.ndarray, ' B'],
  num_samples: int,
  *,
  normalizes_deviation: bool = True,
) -> Float32[np.ndarray, ' B']:
  """Returns how much each reward is above the mean of its prompt.

  Args:
    rewards: The rewards; those of a prompt are adjacent.
    num_samples: Number of samples of a prompt.
    normalizes_deviation: Whether to divide by their standard deviation.
  """
  groups = rewards.reshape(-1, num_samples)
  centered = groups - groups.mean(axis=1, keepdims=True)
  if normalizes_deviation:
    centered /= groups.std(axis=1, ddof=1, keepdims=True) + _EPSILON
  return centered.reshape(-1)


def train_batch(
  samples: Samples, values: Float32[np.ndarray, ' B']
) -> NestedMap:
  """Returns the batch with the responses as labels.

  Args:
    samples: The samples.
    values: Their advantages.
  """
  # Most jobs do not need it.
  from pax.inputs.rows import packing

  num_rows, seq_len = samples.ids.shape
  batch = packing.empty_batch(num_rows, seq_len)
  is_token = samples.is_token
  batch.ids = np.where(is_token, samples.ids, 0)
  batch.labels[:, :-1] = batch.ids[:, 1:]
  batch.paddings = 1.0 - is_token.astype(np.float32)
  batch.segment_ids = is_token.astype(np.int32)
  positions = np.arange(seq_len, dtype=np.int32)
  batch.segment_pos = positions * batch.segment_ids
  is_response = positions + 1 >= samples.prompt_lengths[:, np.newaxis]
  batch.weights[:, :-1] = is_response[:, :-1] & is_token[:, 1:]
  batch.prompt_index = samples.prompt_index
  batch.advantages = values
  batch.eval_sample_weights = np.ones(num_rows, np.float32)
  return batch
