# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding (RoPE)."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from praxis import base_layer, pax_fiddle
from praxis.layers.embedding_softmax.positions import PositionalEmbedding

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]


class RotaryPositionalEmbedding(PositionalEmbedding):
  """Rotates channel pairs by angles proportional to the position.

  Channel i is paired with channel i + H / 2, where H is `embedding_dims` or
  `rotary_dims`.

  References: RoFormer, https://arxiv.org/abs/2104.09864
  """

  # Number of channels from the first on that are rotated; None: all.
  rotary_dims: int | None = None
  # Pairs channel 2 i with channel 2 i + 1 instead.
  interleaved_pairs: bool = False

  # Casts the result to fprop_dtype instead of float32.
  cast_as_fprop_dtype: bool = True
  # Scales the rotation, such as for longer contexts than in training; see
  # rotary_scaling.py. None: no scaling.
  scaling_tpl: LayerTpl | None = pax_fiddle.template_field(None)

  def setup(self) -> None:
    if self.embedding_dims % 2 or self.embedding_dims <= 0:
      raise ValueError(
        f'embedding_dims must be even and > 0, got {self.embedding_dims}; it '
        'is the dimension of an attention head'
      )
    dims = self._rotary_dims()
    if dims % 2 or not 0 < dims <= self.embedding_dims:
      raise ValueError(
        'rotary_dims must be even, > 0 and at most embedding_dims='
        f'{self.embedding_dims}, got {dims}; None rotates all channels'
      )
    if self.scaling_tpl is not None:
      self.create_child('scaling', self.scaling_tpl.clone())

  # Rotates instead of adding, unlike upstream's base class.
  def __call__(  # type: ignore[override]
    self,
    inputs: Float[Array, 'B S *heads H'],
    position: Int[Array, '#B S'] | None = None,
  ) -> Float[Array, 'B S *heads H']:
    """Rotates each position by `position`; None: the index in S."""
    self._check(inputs)
    if position is None:
      position = jnp.arange(inputs.shape[1], dtype=jnp.int32)[None]
    return self._rotate(inputs, position)

  def extend_step(
    self,
    inputs: Float[Array, 'B *heads H'],
    position: Int[Array, '*B'] | int | None = None,
  ) -> Float[Array, 'B *heads H']:
    """Rotates one decoding step by `position`, a scalar or one per example."""
    self._check(inputs)
    position = jnp.asarray(0 if position is None else position)
    return self._rotate(inputs, jnp.broadcast_to(position, inputs.shape[:1]))

  def _check(self, inputs: Array) -> None:
    if inputs.shape[-1] != self.embedding_dims:
      raise ValueError(
        f'the last dimension must be embedding_dims {self.embedding_dims}, got '
        f'{inputs.shape}'
      )

  def _rotary_dims(self) -> int:
    return self.embedding_dims if self.rotary_dims is None else self.rotary_dims

  def _rotate(self, inputs: Array, position: Array) -> Array:
    dims = self._rotary_dims()
    timescale = timescales(dims, self.min_timescale, self.max_timescale)
    if self.scaling_tpl is not None:
      timescale = self.scaling(timescale)
    rotated = rotate(
      inputs[..., :dims],
      position,
      timescale,
      interleaved_pairs=self.interleaved_pairs,
    )
    if self.scaling_tpl is not None:
      rotated = self.scaling.amplitude() * rotated
    if dims < self.embedding_dims:
      kept = inputs[..., dims:].astype(rotated.dtype)
      rotated = jnp.concatenate([rotated, kept], axis=-1)
    return (
      rotated.astype(self.fprop_dtype) if self.cast_as_fprop_dtype else rotated
    )


def timescales(
  size: int, min_timescale: float | int, max_timescale: float | int
) -> Float[Array, ' half']:
  """Returns the timescales: positions per radian of each channel pair."""
  half = size // 2
  ratio = max_timescale / min_timescale
  return min_timescale * ratio ** (jnp.arange(half) / half)


def rotate(
  inputs: Float[Array, 'B *S H'],
  position: Int[Array, '#B *T'],
  timescale: Float[Array, ' half'],
  *,
  interleaved_pairs: bool = False,
) -> Float[Array, 'B *S H']:
  """Returns the inputs with rotated channel pairs, in float32.

  Args:
    inputs: channels in the last dimension.
    position: leading dimensions of the inputs; broadcast over the others.
    timescale: positions per radian.
    interleaved_pairs: whether a pair is two consecutive channels.
  """
  # Broadcasts positions over head dimensions.
  shape = position.shape + (1,) * (inputs.ndim - position.ndim)
  angle = position.astype(jnp.float32).reshape(shape) / timescale
  sin, cos = jnp.sin(angle), jnp.cos(angle)
  channels = inputs.astype(jnp.float32)
  if interleaved_pairs:
    first, second = channels[..., ::2], channels[..., 1::2]
  else:
    first, second = jnp.split(channels, 2, axis=-1)
  rotated = [first * cos - second * sin, second * cos + first * sin]
  if interleaved_pairs:
    return jnp.stack(rotated, axis=-1).reshape(inputs.shape)
  return jnp.concatenate(rotated, axis=-1)
