# SPDX-License-Identifier: Apache-2.0
"""Layers of LLaMA, GPT-J and GPT-NeoX, compatible with their checkpoints."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from praxis import base_layer, pax_fiddle
from praxis.layers import normalizations, transformers
from praxis.layers.attentions import attention_core
from praxis.layers.embedding_softmax import rotary
from praxis.layers.transformers import norm_placement

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]

_Heads = Float[Array, 'B *heads H']
_Inputs = Float[Array, 'B *L D']


class LLaMARotaryEmbedding(rotary.RotaryPositionalEmbedding):
  """Rotates channels 2i and 2i + 1 as a pair."""

  def _rotate(self, inputs: _Heads, position: Int[Array, '#B *S']) -> _Heads:
    rotated = super()._rotate(_even_then_odd(inputs), position)
    return _interleave_halves(rotated)


class GPTJRotaryEmbedding(LLaMARotaryEmbedding):
  """Rotates adjacent pairs of the first `rotary_dim` channels.

  References: https://github.com/kingoflolz/mesh-transformer-jax
  """

  # Maximum sequence length; None is unlimited.
  max_position_embeddings: int | None = None
  # Number of rotated channels; None is all.
  rotary_dim: int | None = None

  def setup(self) -> None:
    """Checks the fields.

    Raises:
      ValueError: `rotary_dim` is odd or out of range.
    """
    super().setup()
    rotary_dim = self._rotary_dim()
    if rotary_dim % 2 or not 0 < rotary_dim <= self.embedding_dims:
      raise ValueError(
        'rotary_dim must be even and at most embedding_dims='
        f'{self.embedding_dims}, got {rotary_dim}'
      )

  # As the base, it rotates inputs instead of returning embeddings.
  def __call__(  # type: ignore[override]
    self,
    inputs: Float[Array, 'B S *heads H'],
    position: Int[Array, '#B S'] | None = None,
  ) -> Float[Array, 'B S *heads H']:
    """Rotates each token by its position, by default its index in S.

    Raises:
      ValueError: The sequence is longer than `max_position_embeddings`.
    """
    max_length = self.max_position_embeddings
    if max_length is not None and inputs.shape[1] > max_length:
      raise ValueError(
        f'a sequence must have at most max_position_embeddings={max_length} '
        f'positions, got {inputs.shape[1]}'
      )
    return super().__call__(inputs, position)

  def _rotate(self, inputs: _Heads, position: Int[Array, '#B *S']) -> _Heads:
    rotary_dim = self._rotary_dim()
    timescale = rotary.timescales(
      rotary_dim, self.min_timescale, self.max_timescale
    )
    rotated, unrotated = jnp.split(inputs, [rotary_dim], axis=-1)
    rotated = rotary.rotate(_even_then_odd(rotated), position, timescale)
    rotated = _interleave_halves(rotated)
    outputs = jnp.concatenate(
      [rotated, unrotated.astype(rotated.dtype)], axis=-1
    )
    if self.cast_as_fprop_dtype:
      outputs = outputs.astype(self.fprop_dtype)
    return outputs

  def _rotary_dim(self) -> int:
    return self.rotary_dim or self.embedding_dims


class FakeLayerNorm(normalizations.LayerNorm):
  """The identity, as a layer norm without variables."""

  def setup(self) -> None:
    """Creates no variables."""

  def __call__(
    self,
    inputs: Float[Array, '*B D'],
    paddings: Float[Array, '*B'] | None = None,
  ) -> Float[Array, '*B D']:
    del paddings
    return inputs


class TransformerMLP(transformers.TransformerFeedForward):
  """A feed-forward block without a norm, for normalized inputs."""

  ln_tpl: LayerTpl = pax_fiddle.template_field(FakeLayerNorm)


class ParallelTransformer(transformers.Transformer):
  """A Transformer layer with attention and feed-forward block in parallel.

  Returns inputs + attention + feed-forward block; the block must have no
  residual connection of its own (add_skip_connection=False).

  References: GPT-J, https://github.com/kingoflolz/mesh-transformer-jax;
  GPT-NeoX, https://arxiv.org/abs/2204.06745
  """

  # 'pre': one norm for both; 'primer_hybrid': one norm each; else no norm.
  norm_policy: str = 'pre'
  tr_fflayer_tpl: LayerTpl = pax_fiddle.template_field(TransformerMLP)

  def setup(self) -> None:
    """Creates the layers.

    Raises:
      ValueError: The fields enable cross attention or stochastic depth, or
        scale the attention outputs.
    """
    if self.atten_residual_weight != 1.0:
      raise ValueError(
        f'atten_residual_weight must be 1 in {type(self).__name__}, got'
        f' {self.atten_residual_weight}; use Transformer'
      )
    if self.use_cross_attention or self.residual_droppath_prob:
      raise ValueError(
        f'{type(self).__name__} has no cross attention and no droppath, got '
        f'use_cross_attention={self.use_cross_attention} and '
        f'residual_droppath_prob={self.residual_droppath_prob}; use Transformer'
      )
    super().setup()

  def ffn_norm(self, inputs: _Inputs, inputs_normalized: _Inputs) -> _Inputs:
    """Returns the input of the feed-forward block."""
    if self.norm_policy == 'primer_hybrid':
      return self._norm(norm_placement.NormPosition.OUTPUT, inputs)
    return inputs_normalized

  def _atten_norm(self, inputs: _Inputs) -> _Inputs:
    return self._norm(norm_placement.NormPosition.INPUT, inputs)

  def _norm(
    self, position: norm_placement.NormPosition, inputs: _Inputs
  ) -> _Inputs:
    return norm_placement.apply_norm(
      self, self.norm_policy, position, inputs, None
    )

  def _attention_block(
    self,
    attend: Callable[[Array], tuple[Array, attention_core.Attended]],
    inputs: _Inputs,
    paddings: Num[Array, ' B *L'] | None,
    prefix: str = '',
  ) -> tuple[_Inputs, attention_core.Attended]:
    del paddings, prefix
    encoded, probs = attend(self._atten_norm(inputs))
    return inputs + self.residual_dropout(encoded), probs

  def _feed_forward(
    self,
    inputs: Float[Array, 'B T D'],
    outputs: Float[Array, 'B T D'],
    paddings: Num[Array, 'B T'] | None,
    segment_ids: Int[Array, 'B T'] | None,
  ) -> Float[Array, 'B T D']:
    normed = self.ffn_norm(inputs, self._atten_norm(inputs))
    return outputs + self.ff_layer(normed, paddings, segment_ids=segment_ids)

  def _feed_forward_step(
    self,
    inputs: _Inputs,
    outputs: _Inputs,
    time_step: Int[Array, ''] | int,
  ) -> _Inputs:
    normed = self.ffn_norm(inputs, self._atten_norm(inputs))
    return outputs + self.ff_layer.extend_step(normed, time_step=time_step)


class ParallelTransformerOnlyNormAttentionInputs(ParallelTransformer):
  """A ParallelTransformer by the name in configs of GPT-NeoX.

  With a single norm, the feed-forward block has the input of the attention.
  """


def _even_then_odd(x: _Heads) -> _Heads:
  """Returns the even channels, followed by the odd channels."""
  return jnp.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1)


def _interleave_halves(x: _Heads) -> _Heads:
  """Inverts `_even_then_odd`."""
  first, second = jnp.split(x, 2, axis=-1)
  return jnp.stack([first, second], axis=-1).reshape(x.shape)
