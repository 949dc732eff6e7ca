# SPDX-License-Identifier: Apache-2.0
"""The step that samples from a policy during its training."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from pax import steps, train_states
from pax.steps import Batch, forward
from praxis import base_layer, py_utils
from praxis.decoding import hparams as decoding
from praxis.nested_map import NestedMap
from praxis.pytypes import Nested

PartitionSpec = jax.sharding.PartitionSpec
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
  # Mesh axes over which weights are gathered before they sample.
  gathered_axes: frozenset[str]

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
    state = gather_weights(settings, state, self.gathered_axes)
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


def gather_weights(
  settings: steps.StepSettings, state: TrainState, axes: frozenset[str]
) -> TrainState:
  """Returns the state with weights that are replicated over mesh axes.

  They have the dtype of the forward pass. Under pmap they are replicated.

  Args:
    settings: The task, and how it runs.
    state: The eval state.
    axes: The axes.
  """
  if not axes or settings.axis_name is not None:
    return state
  mdl_vars, _ = forward.cast_inputs(settings, state.mdl_vars, NestedMap())
  model = settings.task.model
  specs: Nested[PartitionSpec] = base_layer.var_partition_specs(
    settings.var_weight_hparams[base_layer.PARAMS],
    model.mesh_shape,
    model.mesh_axis_names,
  )

  def gather(x: jax.Array, spec: PartitionSpec) -> jax.Array:
    kept = (
      tuple(axis for axis in py_utils.mesh_axes(entry) if axis not in axes)
      for entry in spec
    )
    split_dims = [dim_axes or None for dim_axes in kept]
    # A spec may omit trailing dimensions.
    split_dims += [None] * (x.ndim - len(split_dims))
    return base_layer.maybe_shard(x, split_dims, model.mesh_axis_names)

  params = jax.tree.map(gather, mdl_vars[base_layer.PARAMS], specs)
  return state.replace(mdl_vars={**mdl_vars, base_layer.PARAMS: params})
