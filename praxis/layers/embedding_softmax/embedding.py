# SPDX-License-Identifier: Apache-2.0
"""Token embeddings and a counter of training tokens."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis import base_layer, pax_fiddle, pytypes
from praxis.base_layer import WeightHParams, WeightInit
from praxis.layers import base_ops, linears
from praxis.layers.embedding_softmax import lookup
from praxis.layers.embedding_softmax.positions import create_lookup_table

_FLAGS = base_layer.WeightHParamsCollection


class TokenCounter(base_layer.BaseLayer):
  """Counts the tokens of all training batches, in millions."""

  def setup(self) -> None:
    self.create_variable(
      'approx_total_tokens_mm',
      WeightHParams(
        shape=[],
        init=WeightInit.Constant(0.0),
        dtype=jnp.float32,
        collections=[
          _FLAGS.REQUIRES_SUM_SYNC,
          _FLAGS.DISALLOW_BFLOAT16_CONVERSION,
        ],
      ),
      trainable=False,
    )

  def __call__(
    self, inputs: Int[Array, 'B T'], paddings: Float[Array, 'B T']
  ) -> None:
    """Adds the tokens without padding; does nothing in eval."""
    if self.do_eval:
      return
    total = self.get_var('approx_total_tokens_mm')
    self.add_summary('approx_total_tokens_mm', total)
    tokens = jnp.sum(1 - paddings.astype(jnp.float32))
    self.update_var('approx_total_tokens_mm', total + tokens / 1e6)


class Embedding(base_layer.BaseLayer):
  """Learned embedding table with one vector per class."""

  # Number of classes, V.
  num_classes: int = 0
  # Embedding dimension, D; a softmax has `input_dims` of the model too.
  input_dims: int = 0
  # 'index' gathers rows as `table[ids]`. 'matmul' returns the product of
  # one-hot ids and the table, with zeros for ids of no class. It multiplies if
  # the einsum is replaced, as for quantization, and gathers otherwise.
  lookup_style: str = 'index'
  # Multiplies embeddings by √D.
  scale_sqrt_depth: bool = False
  # A further factor of embeddings.
  embedding_scale: float = 1.0
  # Returns NaN for ids of V and above.
  set_nan_for_oob_id: bool = False
  # Operations of the lookup.
  array_lookup: base_ops.ArrayLookup = pax_fiddle.instance_field(
    base_ops.ArrayLookup
  )
  einsum: base_ops.EinsumOp = pax_fiddle.instance_field(base_ops.EinsumOp)

  class ActivationSharding(base_layer.ActivationSharding):
    # Embeddings [B, T, D].
    emb_out_split_dims_mapping: pytypes.SplitDimsMapping = None

  def setup(self) -> None:
    create_lookup_table(self, [self.num_classes, self.input_dims])

  def __call__(self, ids: Int[Array, '*B']) -> Float[Array, '*B D']:
    return self.emb_lookup(ids)

  def emb_lookup(self, ids: Int[Array, '*B']) -> Float[Array, '*B D']:
    """Returns the embeddings of `ids`."""
    vectors = self._rows(ids)
    if self.set_nan_for_oob_id:
      is_class = ids[..., None] < self.num_classes
      vectors = jnp.where(is_class, vectors, jnp.nan)
    return finish_lookup(
      self, vectors, self.scale_sqrt_depth, self.embedding_scale
    )

  def extend_step(
    self, ids: Int[Array, '*B'], *, time_step: Array
  ) -> Float[Array, '*B D']:
    """Returns the embeddings of `ids`; they do not depend on the step."""
    return self.emb_lookup(ids)

  def _rows(self, ids: Int[Array, '*B']) -> Float[Array, '*B D']:
    mapping = self.weight_split_dims_mapping.wt
    return lookup.rows(self, self._table(), ids, mapping)

  def _table(self) -> Float[Array, 'V D']:
    return self.theta.emb_var


def finish_lookup(
  layer: base_layer.BaseLayer,
  vectors: Array,
  scale_sqrt_depth: bool,
  scale: float = 1.0,
) -> Array:
  """Scales `vectors` if configured and constrains their sharding."""
  if scale_sqrt_depth:
    vectors = vectors * vectors.shape[-1] ** 0.5
  if scale != 1.0:
    vectors = vectors * scale
  sharding = layer.activation_split_dims_mapping
  mapping = sharding.emb_out_split_dims_mapping
  if vectors.ndim == 2:
    step = getattr(sharding, 'extend_step_out', None)
    mapping = step or linears.without_time(mapping, vectors.ndim)
  return base_layer.maybe_shard(vectors, mapping, layer.mesh_axis_names)
