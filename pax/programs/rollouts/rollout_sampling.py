# SPDX-License-Identifier: Apache-2.0
"""The step that samples from a policy during its training."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol, cast

import jax
import jax.numpy as jnp

from pax import steps, tasks_lib, train_states
from pax.steps import Batch
from praxis import pax_fiddle
from praxis.decoding import hparams as decoding
from praxis.decoding import token_samplers
from praxis.nested_map import NestedMap

TrainState = train_states.TrainState

# Folded into the key of the job, so that samples and dropout are independent.
_SAMPLING = 1


class PromptSizes(Protocol):
  """What a `SampleStep` reads of an input."""

  # Number of tokens of the longest prompt, and with its response.
  max_prompt_len: int
  seq_len: int


# Steps are compared by identity: a compiled one is kept for each.
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class SampleStep:
  """Samples a response to each row of a batch of prompts."""

  # Settings of sampling.
  decoder_tpl: decoding.SampleDecoderHParams
  # Number of columns that a prompt may have.
  max_prompt_len: int

  @classmethod
  def create(
    cls,
    task: tasks_lib.SingleTask,
    inp: PromptSizes,
    *,
    top_k: int = 0,
    top_p: float = 1.0,
  ) -> SampleStep:
    """Returns the step for the rows of an input.

    Args:
      task: The task whose LanguageModelGRPO samples, at its temperature.
      inp: The RewardedPromptInput, or its Config.
      top_k: Number of the most probable tokens to sample from; 0: all.
      top_p: Total probability of those of them to sample from.
    """
    eos_ids = task.model.decoder_tpl.eos_id
    decoder = decoding.SampleDecoderHParams(
      fprop_for_prefix=True,
      max_decode_steps=inp.seq_len - inp.max_prompt_len,
      eos_id=[eos_ids] if isinstance(eos_ids, int) else list(eos_ids),
      temperature=task.model.temperature,
      k=top_k,
      p=None if top_p >= 1 else top_p,
      next_token_sampler_tpl=pax_fiddle.Config(
        token_samplers.DefaultNextTokenSampler, filters_at_temperature=True
      ),
    )
    return cls(decoder_tpl=decoder, max_prompt_len=inp.max_prompt_len)

  @property
  def eos_ids(self) -> Sequence[int]:
    """The ids that end a response."""
    return cast(Sequence[int], self.decoder_tpl.eos_id)

  def __call__(
    self,
    settings: steps.StepSettings,
    state: TrainState,
    batch: Batch,
    key: jax.Array,
  ) -> steps.StepFnOutput:
    """Returns the fields of `rollout_batches.Samples` of each row.

    Args:
      settings: The task whose model samples, and where it runs.
      state: The eval state.
      batch: The global batch, with the number of each row, `row`; over replicas
        the batch of one.
      key: PRNG key of the job; `state.step` and `row` are folded in.
    """
    sample_key = jax.random.fold_in(key, _SAMPLING)
    step_key = jax.random.fold_in(sample_key, state.step)
    row_keys = jax.vmap(lambda row: jax.random.fold_in(step_key, row))
    prompts = NestedMap(
      ids=batch.ids[:, : self.max_prompt_len],
      paddings=batch.paddings[:, : self.max_prompt_len],
      gumbel_prng_key=jax.random.key_data(row_keys(batch.row)),
    )
    output = steps.decode_step(
      settings, state, prompts, sample_key, self.decoder_tpl
    )
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


def prompt_spec(train_spec: Batch, num_batches: int) -> NestedMap:
  """Returns the shapes and shardings of the batch of a `SampleStep`.

  Args:
    train_spec: Those of a batch of the input.
    num_batches: Number of batches that are sampled at once.
  """
  spec = jax.tree.map(
    lambda x: x.update(shape=(num_batches * x.shape[0], *x.shape[1:])),
    NestedMap(train_spec),
  )
  spec.row = spec.prompt_index
  return spec
