# SPDX-License-Identifier: Apache-2.0
"""Quantizers without a codebook: of numbers, and of signs.

References: https://arxiv.org/abs/2309.15505, https://arxiv.org/abs/2310.05737
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer, Num

from praxis import base_layer
from praxis.layers.video import entropy
from praxis.nested_map import NestedMap


class ScalarQuantizer(base_layer.BaseLayer):
  """Rounds each channel to one of a few values; a token names all of them."""

  # Size of the input.
  embedding_dim: int = 8
  # How many values each channel takes.
  dim_widths: Sequence[int] = (8, 8, 4, 4, 4, 4, 4, 4)
  # What bounds a channel: 'sine' or 'tanh'.
  bound_method: str = 'sine'
  # How far from the outermost value a channel stays; large, for float16.
  eps: float = 1e-3

  def setup(self) -> None:
    if self.bound_method not in ('sine', 'tanh'):
      raise ValueError(
        f"bound_method must be 'sine' or 'tanh', got {self.bound_method!r}"
      )
    if not self.dim_widths or min(self.dim_widths) < 1:
      raise ValueError(f'dim_widths must be positive, got {self.dim_widths}')

  @property
  def _widths(self) -> np.ndarray:
    return np.asarray(self.dim_widths, np.int32)

  @property
  def _middle(self) -> np.ndarray:
    """What lies between the lowest and the highest value of each channel."""
    return -0.5 * (self._widths % 2 == 0).astype(np.float32)

  def __call__(
    self, inputs: Float[Array, '*B D']
  ) -> tuple[Float[Array, '*B D'], NestedMap]:
    """Returns the values, around 0, with a gradient as if not rounded.

    Beside them raw (not rounded), quantized, encoding_indices [*B], and
    quantizer_loss, which is 0.
    """
    if inputs.shape[-1] != len(self.dim_widths):
      raise ValueError(
        f'inputs must have {len(self.dim_widths)} channels, one for each of '
        f'dim_widths, got {inputs.shape}'
      )
    bound = jnp.sin if self.bound_method == 'sine' else jnp.tanh
    reach = (self._widths * (1 - self.eps) / 2).astype(np.float32)
    raw = bound(inputs) * reach + self._middle
    rounded = raw + jax.lax.stop_gradient(jnp.round(raw) - raw)
    lowest = -(self._widths // 2)
    inside = jnp.clip(rounded, lowest, lowest + self._widths - 1)
    digits = jnp.round(inside).astype(jnp.int32) - lowest
    values = (inside if self.do_eval else rounded) - self._middle
    return values, NestedMap(
      raw=raw - self._middle,
      quantized=values,
      encoding_indices=jnp.sum(digits * self._places, axis=-1),
      quantizer_loss=jnp.zeros([], jnp.float32),
    )

  @property
  def _places(self) -> np.ndarray:
    """What a step of each channel adds to a token; the last counts ones."""
    above = np.cumprod([1, *self._widths[:0:-1]])
    return above[::-1].astype(np.int32)

  def decode_ids(self, ids: Num[Array, '*B']) -> Float[Array, '*B D']:
    """Returns the values that tokens stand for."""
    if not jnp.issubdtype(ids.dtype, jnp.integer):
      ids = jnp.round(ids)
    digits = ids.astype(jnp.int32)[..., None] // self._places % self._widths
    return digits - self._widths // 2 - self._middle


class LookupFreeQuantizer(base_layer.BaseLayer):
  """Takes the sign of each channel; the bits of a token are the signs."""

  # Size of the input.
  embedding_dim: int = 8
  # How many tokens the signs are spread over, if they can be so evenly; fewer
  # if not.
  num_token_groups: int = 1
  # The weights of the losses: of entropy, and of being away from +-1.
  entropy_loss_ratio: float = 0.1
  commitment_cost: float = 0.25
  # How many groups of channels entropy is computed in; 1 is exact, and takes
  # 2^embedding_dim probabilities for each input.
  entropy_loss_groups: int = 1
  # 'softmax', or 'argmax': what tokens count in the entropy.
  entropy_loss_type: str = 'softmax'
  # The temperature of the probabilities.
  entropy_temperature: float = 0.01
  # The weight of the entropy of the batch, which is to be large.
  entropy_loss_balance: float = 1.0

  def setup(self) -> None:
    if self.entropy_loss_type not in ('softmax', 'argmax'):
      raise ValueError(
        "entropy_loss_type must be 'softmax' or 'argmax', got "
        f'{self.entropy_loss_type!r}'
      )
    groups = self.entropy_loss_groups
    if groups < 1 or self.embedding_dim % groups:
      raise ValueError(
        f'entropy_loss_groups must divide embedding_dim {self.embedding_dim}, '
        f'got {groups}'
      )
    if groups > 1 and self.entropy_loss_type != 'softmax':
      raise ValueError(
        "entropy_loss_groups > 1 needs entropy_loss_type='softmax', got "
        f'{self.entropy_loss_type!r}'
      )
    if not 1 <= self.num_token_groups <= self.embedding_dim:
      raise ValueError(
        f'num_token_groups must be in 1 to {self.embedding_dim}, got '
        f'{self.num_token_groups}'
      )

  @property
  def _bits(self) -> int:
    """How many signs a token holds; the last may hold fewer."""
    return math.ceil(self.embedding_dim / self.num_token_groups)

  def __call__(
    self, inputs: Float[Array, '*B D']
  ) -> tuple[Float[Array, '*B D'], NestedMap]:
    """Returns +-1, with the gradient of the inputs.

    Beside them encodings, encoding_indices [*B] (or [*B, groups]), raw, and in
    training quantizer_loss, the sum of e_latent_loss and entropy_loss.
    """
    if inputs.shape[-1] != self.embedding_dim:
      raise ValueError(
        f'inputs must have {self.embedding_dim} channels, embedding_dim, got '
        f'{inputs.shape}'
      )
    signs = jnp.where(inputs >= 0, 1.0, -1.0).astype(inputs.dtype)
    result = NestedMap(encoding_indices=self._tokens(inputs >= 0), raw=inputs)
    if not self.do_eval:
      away = jnp.square(signs - inputs.astype(jnp.float32))
      result.e_latent_loss = jnp.mean(away) * self.commitment_cost
      result.entropy_loss = self._entropy_loss(inputs.astype(jnp.float32))
      result.quantizer_loss = result.e_latent_loss + result.entropy_loss
      signs = inputs + jax.lax.stop_gradient(signs - inputs)
    result.encodings = signs
    return signs, result

  def _tokens(self, bits: Array) -> Integer[Array, '...']:
    count = math.ceil(self.embedding_dim / self._bits)
    missing = self._bits * count - self.embedding_dim
    bits = jnp.pad(bits, [(0, 0)] * (bits.ndim - 1) + [(0, missing)])
    bits = bits.reshape(*bits.shape[:-1], count, self._bits)
    places = jnp.asarray(2 ** np.arange(self._bits), jnp.uint32)
    tokens = jnp.sum(bits * places, axis=-1, dtype=jnp.uint32)
    return tokens[..., 0] if self.num_token_groups == 1 else tokens

  def _entropy_loss(self, inputs: Float[Array, '*B D']) -> Float[Array, '']:
    if self.entropy_loss_ratio == 0:
      return jnp.zeros([], jnp.float32)
    flat = inputs.reshape(-1, self.embedding_dim) / self.entropy_temperature
    if self.entropy_loss_groups > 1:
      sample, batch = entropy.factorized(flat, self.entropy_loss_groups)
    else:
      hard = self.entropy_loss_type == 'argmax'
      sample, batch = entropy.exact(flat, is_hard=hard)
    loss = sample - batch * self.entropy_loss_balance
    return loss * self.entropy_loss_ratio

  def decode_ids(self, inputs: Num[Array, '...']) -> Float[Array, '...']:
    """Returns the +-1 of the tokens `encoding_indices`."""
    tokens = inputs[..., None] if self.num_token_groups == 1 else inputs
    shifts = jnp.arange(self._bits, dtype=jnp.uint32)
    bits = tokens.astype(jnp.uint32)[..., None] >> shifts & 1
    bits = bits.reshape(*tokens.shape[:-1], -1)[..., : self.embedding_dim]
    return jnp.where(bits == 1, 1.0, -1.0)
