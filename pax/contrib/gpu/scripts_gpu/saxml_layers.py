# SPDX-License-Identifier: Apache-2.0
"""Layers of LLaMA, GPT-J and GPT-NeoX, as their checkpoints have them."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from praxis import base_layer, pax_fiddle
from praxis.layers import normalizations, transformers
from praxis.layers.embedding_softmax import rotary

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]

_Heads = Float[Array, 'B *heads H']
_Inputs = Float[Array, 'B *L D']


class LLaMARotaryEmbedding(rotary.RotaryPositionalEmbedding):
  """Rotates channels 2i and 2i + 1 as a pair."""

  def _rotate(self, inputs: _Heads, position: Int[Array, '#B *S']) -> _Heads:
    return _neighbors(super()._rotate(_halves(inputs), position))


class GPTJRotaryEmbedding(LLaMARotaryEmbedding):
  """Rotates pairs of neighbors among the first `rotary_dim` channels.

  References: https://github.com/kingoflolz/mesh-transformer-jax
  """

  # How many positions a sequence has at most; no limit when absent.
  max_position_embeddings: int | None = None
  # How many channels are rotated; all when absent.
  rotary_dim: int | None = None

  def setup(self) -> None:
    super().setup()
    size = self._num_rotated()
    if size % 2 or not 0 < size <= self.embedding_dims:
      raise ValueError(
        'rotary_dim must be even and at most embedding_dims='
        f'{self.embedding_dims}, got {size}'
      )

  def __call__(
    self,
    inputs: Float[Array, 'B S *heads H'],
    position: Int[Array, '#B S'] | None = None,
  ) -> Float[Array, 'B S *heads H']:
    """Rotates each row by its `position`, by default its index in S."""
    limit = self.max_position_embeddings
    if limit is not None and inputs.shape[1] > limit:
      raise ValueError(
        f'a sequence must have at most max_position_embeddings={limit} '
        f'positions, got {inputs.shape[1]}'
      )
    return super().__call__(inputs, position)

  def _rotate(self, inputs: _Heads, position: Int[Array, '#B *S']) -> _Heads:
    size = self._num_rotated()
    timescale = rotary.timescales(size, self.min_timescale, self.max_timescale)
    first, rest = inputs[..., :size], inputs[..., size:]
    rotated = _neighbors(rotary.rotate(_halves(first), position, timescale))
    whole = jnp.concatenate([rotated, rest.astype(rotated.dtype)], axis=-1)
    return whole.astype(self.fprop_dtype) if self.cast_as_fprop_dtype else whole

  def _num_rotated(self) -> int:
    return self.rotary_dim or self.embedding_dims


class FakeLayerNorm(normalizations.LayerNorm):
  """Takes the place of a norm, and returns what it gets."""

  def setup(self) -> None:
    pass

  def __call__(
    self,
    inputs: Float[Array, '*B D'],
    paddings: Float[Array, '*B'] | None = None,
  ) -> Float[Array, '*B D']:
    del paddings
    return inputs


class TransformerMLP(transformers.TransformerFeedForward):
  """A feed-forward block whose input is normalized already."""

  ln_tpl: LayerTpl = pax_fiddle.template_field(FakeLayerNorm)


class ParallelTransformer(transformers.Transformer):
  """A layer whose attention and feed-forward block have the same input.

  Returns inputs + attention + feed-forward block; leave the block without a
  residual connection of its own (add_skip_connection).

  References: GPT-J, https://github.com/kingoflolz/mesh-transformer-jax;
  GPT-NeoX, https://arxiv.org/abs/2204.06745
  """

  # 'pre': one norm for both; 'primer_hybrid': one for each; else none.
  norm_policy: str = 'pre'
  tr_fflayer_tpl: LayerTpl = pax_fiddle.template_field(TransformerMLP)

  def setup(self) -> None:
    if self.use_cross_attention or self.residual_droppath_prob:
      raise ValueError(
        f'{type(self).__name__} has no cross attention and skips no block, got '
        f'use_cross_attention={self.use_cross_attention} and '
        f'residual_droppath_prob={self.residual_droppath_prob}; use Transformer'
      )
    super().setup()

  def ffn_norm(self, inputs: _Inputs, inputs_normalized: _Inputs) -> _Inputs:
    """Returns the input of the feed-forward block."""
    if self.norm_policy == 'primer_hybrid':
      return self.post_layer_norm(inputs)
    return inputs_normalized

  def _atten_norm(self, inputs: _Inputs) -> _Inputs:
    if self.norm_policy == 'primer_hybrid':
      return self.pre_layer_norm(inputs)
    return self.layer_norm(inputs) if self.norm_policy == 'pre' else inputs

  def _attention_block(
    self,
    attend: Callable[[Array], tuple[Array, Array | None]],
    inputs: _Inputs,
    paddings: Num[Array, 'B *L'] | None,
    prefix: str = '',
  ) -> tuple[_Inputs, Array | None]:
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
  """A ParallelTransformer by the name that checkpoints of NeoX ask for.

  Without a norm of its own the feed-forward block has the attention's input.
  """


def _halves(x: _Heads) -> _Heads:
  """Returns channels 0, 2, ... and behind them 1, 3, ..."""
  return jnp.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1)


def _neighbors(x: _Heads) -> _Heads:
  """Returns the channels of `_halves` in their own order."""
  first, second = jnp.split(x, 2, axis=-1)
  return jnp.stack([first, second], axis=-1).reshape(x.shape)
