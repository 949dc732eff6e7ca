# SPDX-License-Identifier: Apache-2.0
"""Low-rank adaptation (LoRA): layers whose weights have low-rank updates.

An adapted layer multiplies by W + s A B^T, with A [I, R] and B [O, R] for a
matrix W [I, O] and s = lora_alpha / rank. B starts at zero. A learner that
freezes W trains A and B only, and computes no gradient of W. In training, the
inputs of A may have dropout.

With `use_dora` each output of the sum has the norm |W| + d, with a vector d [O]
that starts at zero and learns, too: the weight is
(|W| + d) (W + s A B^T) / |W + s A B^T|. As in the paper, no gradient flows
through the norm that divides.

Shapes: I inputs, O outputs, R rank, K matrices of a weight, such as experts.

References: LoRA, arXiv:2106.09685; DoRA, arXiv:2402.09353
"""

from __future__ import annotations

import contextlib
import contextvars
import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import fiddle as fdl
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis import base_layer, pax_fiddle, weight_matrices
from praxis.base_layer import WeightHParams, WeightInit
from praxis.layers import (
  attentions,
  find_templates,
  linears,
  multi_query_attention,
  stochastics,
  transformers,
)

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]

# Paths of the variables that learn.
FACTORS = r'.*/(?!ref_)(\w+_)?lora_(a|b|magnitude_delta)'

_REFERENCE = 'ref_'
# End of the name of d.
_DELTA = 'magnitude_delta'
_APPLIES_REFERENCE = contextvars.ContextVar('applies_reference', default=False)


@contextlib.contextmanager
def reference(is_applied: bool = True) -> Iterator[None]:
  """Context in which layers apply the updates of their reference.

  Args:
    is_applied: whether they do, instead of their own.
  """
  token = _APPLIES_REFERENCE.set(is_applied)
  try:
    yield
  finally:
    _APPLIES_REFERENCE.reset(token)


class LowRankUpdates(base_layer.BaseLayer):
  """Declares low-rank updates of weights of the layer it is mixed into.

  The factors of the weight `w` are `lora_a` and `lora_b`, those of others have
  the name of the weight before these. They are float32: they take steps that
  are smaller than what bfloat16 resolves.
  """

  # Divided by the rank, the factor of the updates, which is the variable
  # `lora_scale`; None: they have none.
  lora_alpha: float | None = None
  # The initializer of A; None: that of the weight.
  lora_init: WeightInit | None = None
  # Whether there are other factors with the prefix `ref_`, those of a reference
  # that does not learn; see `reference`.
  has_reference: bool = False

  # The field that has R.
  _RANK_FIELD: ClassVar[str]

  def setup(self) -> None:
    super().setup()
    self._check_positive(self._RANK_FIELD)
    for weight in self._adapted_weights():
      self._create_factors(weight)
      if self.has_reference:
        self._create_factors(weight, prefix=_REFERENCE)
    if self.lora_alpha is not None:
      self._create_scale(self.lora_alpha / self._rank)

  @property
  def _rank(self) -> int:
    """R."""
    return getattr(self, self._RANK_FIELD)

  def weight_update(self, weight: str = 'w') -> Float[Array, '...']:
    """Returns the update of a weight, in its layout.

    Args:
      weight: name of the variable.
    """
    a, b = self._factors(weight)
    return self._to_layout(
      weight, jnp.einsum('...ir,...or->...io', self._scaled(a), b)
    )

  def _to_layout(
    self, weight: str, matrices: Float[Array, '*K I O']
  ) -> Float[Array, '...']:
    declared = self._float_declaration(weight)
    return weight_matrices.from_matrices(
      matrices, tuple(declared.shape), self._factor_axes(declared)
    )

  def _adapted_weights(self) -> list[str]:
    return ['w']

  def _float_declaration(self, weight: str) -> WeightHParams:
    """Returns the declaration of a weight, which quantized layers change."""
    return self._declared(weight)

  def _factor_axes(self, declared: WeightHParams) -> weight_matrices.MatrixAxes:
    """Returns the dimensions of a weight that A and B have."""
    return weight_matrices.matrix_axes(declared)

  def _create_factors(self, weight: str, prefix: str = '') -> None:
    declared = self._float_declaration(weight)
    inputs, outputs = axes = self._factor_axes(declared)
    rank = len(declared.shape)
    stack = [i - rank for i in range(rank) if i - rank not in sum(axes, [])]
    size = lambda dims: math.prod(declared.shape[i] for i in dims)
    init = self._init_of_a(declared, size(inputs))
    zero = WeightInit.Constant(0.0)
    rank_dims = [self._rank]
    variables = [
      ('a', inputs, rank_dims, init),
      ('b', outputs, rank_dims, zero),
    ]
    if self._has_magnitude:
      variables.append((_DELTA, outputs, [], zero))
    for suffix, dims, channels, init_of_variable in variables:
      split = declared.tensor_split_dims_mapping
      if split is not None:
        merged = base_layer.merge_splits([split[i] for i in dims])
        split = [*(split[i] for i in stack), merged, *(None for _ in channels)]
      variable = WeightHParams(
        shape=[*(declared.shape[i] for i in stack), size(dims), *channels],
        init=init_of_variable,
        dtype=jnp.float32,
        mesh_shape=self.mesh_shape,
        tensor_split_dims_mapping=split,
        active_fraction=declared.active_fraction,
      )
      self.create_variable(prefix + _variable_name(weight, suffix), variable)

  @property
  def _has_magnitude(self) -> bool:
    """Whether the norms of outputs learn, too."""
    return False

  def _create_scale(self, scale: float) -> None:
    # A variable, so that a checkpoint has all of the update.
    hparams = WeightHParams(
      shape=[],
      init=WeightInit.Constant(scale),
      dtype=jnp.float32,
      mesh_shape=self.mesh_shape,
      collections=[
        base_layer.WeightHParamsCollection.DISALLOW_BFLOAT16_CONVERSION,
        # It is equal on all replicas; without a flag they refuse it.
        base_layer.WeightHParamsCollection.REQUIRES_MEAN_SYNC,
      ],
    )
    self.create_variable('lora_scale', hparams, trainable=False)

  def _init_of_a(
    self, declared: WeightHParams, num_inputs: int
  ) -> WeightInit | None:
    """Returns the initializer of A."""
    del num_inputs
    return self.lora_init or declared.init

  def _factors(
    self, weight: str
  ) -> tuple[Float[Array, '*K I R'], Float[Array, '*K O R']]:
    a, b = (self._learned(weight, letter) for letter in 'ab')
    return a, b

  def _learned(self, weight: str, suffix: str) -> Float[Array, '...']:
    """Returns a variable of the update of a weight, or of its reference."""
    prefix = ''
    if _APPLIES_REFERENCE.get():
      if not self.has_reference:
        raise ValueError(
          f'{type(self).__name__} {self.name!r} needs has_reference to apply'
          ' the updates of a reference, got False; set it'
        )
      prefix = _REFERENCE
    return self.theta[prefix + _variable_name(weight, suffix)]

  def _scaled(self, x: Float[Array, '*B']) -> Float[Array, '*B']:
    if self.lora_alpha is None:
      return x
    scale = self.get_var('lora_scale')
    return (x.astype(jnp.float32) * scale).astype(x.dtype)


class AdaptedWeights(LowRankUpdates):
  """Declares low-rank updates that begin as those of the authors' code."""

  # R.
  lora_rank: int = 0
  # The probability that an input of A is dropped in training.
  lora_dropout_prob: float = 0.0
  # Whether the norm of each output of the weight learns, too (DoRA).
  use_dora: bool = False

  _RANK_FIELD = 'lora_rank'

  def updated_weight(self, weight: str = 'w') -> Float[Array, '...']:
    """Returns the weight that the layer multiplies by, in its layout.

    Args:
      weight: name of the variable.
    """
    updated = self.theta[weight] + self.weight_update(weight)
    if not self.use_dora:
      return updated
    gain = self._gain(weight).astype(updated.dtype)
    return updated * self._to_layout(
      weight,
      jnp.broadcast_to(gain[..., None, :], self._matrices(weight).shape),
    )

  @property
  def _has_magnitude(self) -> bool:
    return self.use_dora

  def _matrices(self, weight: str) -> Float[Array, '*K I O']:
    declared = self._float_declaration(weight)
    return weight_matrices.to_matrices(
      self.theta[weight], self._factor_axes(declared)
    )

  def _gain(self, weight: str) -> Float[Array, '*K O']:
    """Returns the learned norm of each output, divided by that of the sum."""
    a, b = (
      jax.lax.stop_gradient(x).astype(jnp.float32)
      for x in self._factors(weight)
    )
    a = self._scaled(a)
    w = jax.lax.stop_gradient(self._matrices(weight))
    square = jnp.sum(jnp.square(w.astype(jnp.float32)), axis=-2)
    # |W + A B^T|^2 without the sum, which has the size of W.
    product = jnp.einsum(
      '...io,...ir->...or',
      w,
      a.astype(w.dtype),
      preferred_element_type=jnp.float32,
    )
    gram = jnp.einsum('...ir,...is->...rs', a, a)
    of_sum = (
      square
      + 2.0 * jnp.sum(product * b, axis=-1)
      + jnp.einsum('...or,...rs,...os->...o', b, gram, b)
    )
    delta = self._learned(weight, _DELTA).astype(jnp.float32)
    # Outputs without weights have no direction.
    is_zero = of_sum <= 0.0
    norm = jnp.sqrt(jnp.where(is_zero, 1.0, of_sum))
    return jnp.where(is_zero, 1.0, (jnp.sqrt(square) + delta) / norm)

  def _init_of_a(
    self, declared: WeightHParams, num_inputs: int
  ) -> WeightInit | None:
    return self.lora_init or WeightInit.Uniform(num_inputs**-0.5)


class LowRankAdaptation(AdaptedWeights):
  """Adds the product with the low-rank update to that with the weight `w`.

  The update itself is never computed: the product with A has R channels.
  """

  def setup(self) -> None:
    super().setup()
    dropout_p = pax_fiddle.Config(
      stochastics.Dropout, keep_prob=1.0 - self.lora_dropout_prob
    )
    self.create_child('lora_dropout', dropout_p)

  def __call__(self, inputs: Float[Array, '...']) -> Any:
    """Returns what the layer returns, by its weight and the update."""
    outputs = super().__call__(inputs)
    a, b = self._factors('w')
    num_dims = self._num_input_dims()
    batch, dims = inputs.shape[:-num_dims], inputs.shape[-num_dims:]
    inputs = self.lora_dropout(inputs)
    stack, of_input = 'k' * (a.ndim - 2), 'xy'[:num_dims]
    low = jnp.einsum(
      f'...{of_input},{stack}{of_input}r->...{stack}r',
      inputs,
      a.reshape(*a.shape[:-2], *dims, self._rank),
    )
    low = self._scaled(low)

    gain = self._gain('w') if self.use_dora else None
    bias = self.theta.b if getattr(self, 'use_bias', False) else None

    def update(outputs: Array, low: Array, matrix: Any) -> Array:
      dims = outputs.shape[len(batch) :]
      of_output = 'xy'[: len(dims)]
      product = jnp.einsum(
        f'...r,{of_output}r->...{of_output}',
        low,
        b[matrix].reshape(*dims, self._rank),
      )
      if gain is None:
        return outputs + product
      shift = 0.0 if bias is None else bias[matrix].reshape(dims)
      scale = gain[matrix].reshape(dims).astype(outputs.dtype)
      return (outputs - shift + product) * scale + shift

    if not stack:
      return update(outputs, low, ...)
    return tuple(update(x, low[..., i, :], i) for i, x in enumerate(outputs))

  def _num_input_dims(self) -> int:
    """Returns the number of dimensions of inputs that the weight contracts."""
    return 1


class AdaptedLinear(LowRankAdaptation, linears.Linear):
  """A Linear with a low-rank update."""


class AdaptedOneHeadedAttentionProjection(
  LowRankAdaptation, multi_query_attention.OneHeadedAttentionProjection
):
  """A projection to one head with a low-rank update."""


class AdaptedAttentionProjection(
  LowRankAdaptation, attentions.AttentionProjection
):
  """A projection to or from heads with a low-rank update."""

  def product_weight(self) -> Float[Array, '...'] | None:
    """Returns the weight with its update."""
    return self.updated_weight()

  def _num_input_dims(self) -> int:
    return 2 if self.is_output_projection else 1


class AdaptedCombinedQKVProjectionLayer(
  LowRankAdaptation, attentions.CombinedQKVProjectionLayer
):
  """A projection to queries, keys and values, with an update of each."""


class AdaptedFeedForwardMoe(
  AdaptedWeights, transformers.TransformerFeedForwardMoe
):
  """A mixture of experts whose weights have low-rank updates; not its router.

  Unlike those of other layers they are computed, for the products of rows that
  are sorted by expert take one weight. They have no inputs that dropout leaves
  out.
  """

  def setup(self) -> None:
    super().setup()
    if self.lora_dropout_prob:
      raise ValueError(
        f'{type(self).__name__} {self.name!r} must have lora_dropout_prob=0, as'
        f' the weights of experts are summed, got {self.lora_dropout_prob}; set'
        ' it to 0, or adapt attention alone'
      )
    if self.use_dora and self.expert_weight_shards > 1:
      raise ValueError(
        f'{type(self).__name__} {self.name!r} must have expert_weight_shards=1'
        ' with use_dora, as a shard of wo has a part of the inputs, got'
        f' {self.expert_weight_shards}; set it to 1, or use_dora=False'
      )

  def _adapted_weights(self) -> list[str]:
    return [
      f'{name}_{i}'
      for name in (*self._input_names(), 'wo')
      for i in range(self.expert_weight_shards)
    ]

  def _concatenate_shards(
    self, name: str, hidden_axis: int
  ) -> Float[Array, 'E ...']:
    shards = [f'{name}_{i}' for i in range(self.expert_weight_shards)]
    if shards[0] not in self._adapted_weights():
      return super()._concatenate_shards(name, hidden_axis)
    return jnp.concatenate(
      [self.updated_weight(shard) for shard in shards], axis=hidden_axis
    )


class AdaptedBranchNormFeedForwardMoe(
  AdaptedFeedForwardMoe, transformers.BranchNormFeedForwardMoe
):
  """The same of a mixture whose branches have norms of their own."""


_ADAPTED: Mapping[type, type] = {
  linears.Linear: AdaptedLinear,
  attentions.AttentionProjection: AdaptedAttentionProjection,
  attentions.CombinedQKVProjectionLayer: AdaptedCombinedQKVProjectionLayer,
  multi_query_attention.OneHeadedAttentionProjection: (
    AdaptedOneHeadedAttentionProjection
  ),
  transformers.TransformerFeedForwardMoe: AdaptedFeedForwardMoe,
  transformers.BranchNormFeedForwardMoe: AdaptedBranchNormFeedForwardMoe,
}


def add_updates(layer_tpl: LayerTpl, **fields: Any) -> None:
  """Adds low-rank updates to the weights within a layer's Config.

  Args:
    layer_tpl: Config of a layer; changed.
    **fields: those of AdaptedWeights.

  Raises:
    ValueError: no weight can have one.
  """
  templates = [
    tpl
    for tpl in find_templates.find_target_tpl(layer_tpl, tuple(_ADAPTED))
    if tpl.cls in _ADAPTED
  ]
  for tpl in templates:
    fdl.update_callable(tpl, _ADAPTED[tpl.cls])
    tpl.set(**fields)
  if not templates:
    raise ValueError(
      'a layer with low-rank updates must have one of'
      f' {[cls.__name__ for cls in _ADAPTED]}, {layer_tpl.cls.__name__} has'
      ' none; adapt other layers'
    )


def _variable_name(weight: str, suffix: str) -> str:
  return f'lora_{suffix}' if weight == 'w' else f'{weight}_lora_{suffix}'
