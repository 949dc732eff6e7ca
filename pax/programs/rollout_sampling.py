# SPDX-License-Identifier: Apache-2.0
"""The step that samples from a policy during its training."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from pax import steps, train_states
from pax.steps import Batch
from praxis.decoding import hparams as decoding
from praxis.nested_map import NestedMap

TrainState = train_states.TrainState

# Folded into the key of the job, so that samples and dropout are independent.
_SAMPLING = 1


# Steps are compared by identity: a compiled one is kept for each.
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class SampleStep:
  """Samples a response to each row of a batch of prompts."""

  # Settings of sampling.
  decoder_tpl: decoding.SampleDecoderHParams
  # Number of columns that a prompt may have.
  max_prompt_len: int

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
