# SPDX-License-Identifier: Apache-2.0
"""Quantizers without a codebook: finite scalar and lookup-free quantization.

References: FSQ, https://arxiv.org/abs/2309.15505; LFQ (MAGVIT-v2),
https://arxiv.org/abs/2310.05737
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Integer, Num

from praxis import base_layer
from praxis.alias_names import module_getattr
from praxis.layers.video import entropy
from praxis.nested_map import NestedMap

__getattr__ = module_getattr(__name__)

# Tokens of lookup-free quantization are uint32.
_TOKEN_BITS = 32


class ScalarQuantizer(base_layer.BaseLayer):
  """Finite scalar quantization: rounds each channel to a few levels.

  A token is the mixed-radix number of the levels of all channels.
  """

  # Size of the input.
  embedding_dim: int = 8
  # Number of levels of each channel.
  dim_widths: Sequence[int] = (8, 8, 4, 4, 4, 4, 4, 4)
  # The function that bounds channels: 'sine' or 'tanh'.
  bound_method: str = 'sine'
  # Relative margin between the bound and the outermost levels, large enough for
  # float16.
  eps: float = 1e-3

  def setup(self) -> None:
    if self.bound_method not in ('sine', 'tanh'):
      raise ValueError(
        f"bound_method must be 'sine' or 'tanh', got {self.bound_method!r}"
      )
    if not self.dim_widths or min(self.dim_widths) < 1:
      raise ValueError(f'dim_widths must be positive, got {self.dim_widths}')
    if (num_tokens := math.prod(self.dim_widths)) > 2**31:
      raise ValueError(
        f'dim_widths must have a product of at most 2^31, as a token is an '
        f'int32, got {tuple(self.dim_widths)} with {num_tokens}'
      )

  @property
  def _widths(self) -> np.ndarray:
    return np.asarray(self.dim_widths, np.int32)

  @property
  def _center(self) -> np.ndarray:
    """The mean of the lowest and the highest level of each channel."""
    return -0.5 * (self._widths % 2 == 0).astype(np.float32)

  def __call__(
    self, inputs: Float[Array, '*B D']
  ) -> tuple[Float[Array, '*B D'], NestedMap]:
    """Returns the levels, centered at 0, with a straight-through gradient.

    Returns:
      The levels, and raw (not rounded), quantized, encoding_indices [*B] and
      quantizer_loss (0).

    Raises:
      ValueError: the number of channels is not that of dim_widths.
    """
    if inputs.shape[-1] != len(self.dim_widths):
      raise ValueError(
        f'inputs must have {len(self.dim_widths)} channels, one for each of '
        f'dim_widths, got {inputs.shape}'
      )
    bound = jnp.sin if self.bound_method == 'sine' else jnp.tanh
    half_width = (self._widths * (1 - self.eps) / 2).astype(np.float32)
    raw = bound(inputs) * half_width + self._center
    rounded = raw + jax.lax.stop_gradient(jnp.round(raw) - raw)
    lowest = -(self._widths // 2)
    clipped = jnp.clip(rounded, lowest, lowest + self._widths - 1)
    digits = jnp.round(clipped).astype(jnp.int32) - lowest
    levels = (clipped if self.do_eval else rounded) - self._center
    return levels, NestedMap(
      raw=raw - self._center,
      quantized=levels,
      encoding_indices=jnp.sum(digits * self._place_values, axis=-1),
      quantizer_loss=jnp.zeros([], jnp.float32),
    )

  @property
  def _place_values(self) -> np.ndarray:
    """The place value of each channel in a token; that of the last is 1."""
    place_values = np.cumprod([1, *self._widths[:0:-1]])
    return place_values[::-1].astype(np.int32)

  def decode_ids(self, ids: Num[Array, '*B']) -> Float[Array, '*B D']:
    """Returns the levels of tokens `encoding_indices`."""
    if not jnp.issubdtype(ids.dtype, jnp.integer):
      ids = jnp.round(ids)
    digits = (
      ids.astype(jnp.int32)[..., None] // self._place_values % self._widths
    )
    return digits - self._widths // 2 - self._center


class LookupFreeQuantizer(base_layer.BaseLayer):
  """Lookup-free quantization: the signs of channels are the bits of a token."""

  # Size of the input.
  embedding_dim: int = 8
  # Number of tokens that the signs are distributed over; fewer if they do not
  # divide evenly.
  num_token_groups: int = 1
  # The weights of the entropy loss and of the commitment loss.
  entropy_loss_ratio: float = 0.1
  commitment_cost: float = 0.25
  # Number of channel groups of a factorized batch entropy; 1 is exact, with
  # 2^embedding_dim probabilities for each input.
  entropy_loss_groups: int = 1
  # The probabilities of the entropy: 'softmax', or one-hot ones, 'argmax'.
  entropy_loss_type: str = 'softmax'
  # The temperature of the probabilities.
  entropy_temperature: float = 0.01
  # The weight of the batch entropy, which is maximized.
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
    if self._bits > _TOKEN_BITS:
      raise ValueError(
        f'num_token_groups must be at least '
        f'{math.ceil(self.embedding_dim / _TOKEN_BITS)} with embedding_dim '
        f'{self.embedding_dim}, as a token has {_TOKEN_BITS} bits, got '
        f'{self.num_token_groups}'
      )

  @property
  def _bits(self) -> int:
    """Number of bits of a token; the last token may have fewer."""
    return math.ceil(self.embedding_dim / self.num_token_groups)

  def __call__(
    self, inputs: Float[Array, '*B D']
  ) -> tuple[Float[Array, '*B D'], NestedMap]:
    """Returns the signs with a straight-through gradient.

    Returns:
      The signs +-1, and encodings (the same), encoding_indices [*B] or
      [*B, groups], raw, and in training quantizer_loss, the sum of
      e_latent_loss and entropy_loss.

    Raises:
      ValueError: the number of channels is not embedding_dim.
    """
    if inputs.shape[-1] != self.embedding_dim:
      raise ValueError(
        f'inputs must have {self.embedding_dim} channels, embedding_dim, got '
        f'{inputs.shape}'
      )
    signs = jnp.where(inputs >= 0, 1.0, -1.0).astype(inputs.dtype)
    result = NestedMap(encoding_indices=self._tokens(inputs >= 0), raw=inputs)
    if not self.do_eval:
      squared_error = jnp.square(signs - inputs.astype(jnp.float32))
      result.e_latent_loss = jnp.mean(squared_error) * self.commitment_cost
      result.entropy_loss = self._entropy_loss(inputs.astype(jnp.float32))
      result.quantizer_loss = result.e_latent_loss + result.entropy_loss
      signs = inputs + jax.lax.stop_gradient(signs - inputs)
    result.encodings = signs
    return signs, result

  def _tokens(self, bits: Bool[Array, '*B D']) -> Integer[Array, '...']:
    num_tokens = math.ceil(self.embedding_dim / self._bits)
    num_padding = self._bits * num_tokens - self.embedding_dim
    bits = jnp.pad(bits, [(0, 0)] * (bits.ndim - 1) + [(0, num_padding)])
    bits = bits.reshape(*bits.shape[:-1], num_tokens, self._bits)
    place_values = jnp.asarray(2 ** np.arange(self._bits), jnp.uint32)
    tokens = jnp.sum(bits * place_values, axis=-1, dtype=jnp.uint32)
    return tokens[..., 0] if self.num_token_groups == 1 else tokens

  def _entropy_loss(self, inputs: Float[Array, '*B D']) -> Float[Array, '']:
    if self.entropy_loss_ratio == 0:
      return jnp.zeros([], jnp.float32)
    flat = inputs.reshape(-1, self.embedding_dim) / self.entropy_temperature
    if self.entropy_loss_groups > 1:
      sample, batch = entropy.factorized(flat, self.entropy_loss_groups)
    else:
      is_hard = self.entropy_loss_type == 'argmax'
      sample, batch = entropy.exact(flat, is_hard=is_hard)
    loss = sample - batch * self.entropy_loss_balance
    return loss * self.entropy_loss_ratio

  def decode_ids(self, inputs: Num[Array, '...']) -> Float[Array, '...']:
    """Returns the signs +-1 of tokens `encoding_indices`."""
    tokens = inputs[..., None] if self.num_token_groups == 1 else inputs
    shifts = jnp.arange(self._bits, dtype=jnp.uint32)
    bits = tokens.astype(jnp.uint32)[..., None] >> shifts & 1
    bits = bits.reshape(*tokens.shape[:-1], -1)[..., : self.embedding_dim]
    return jnp.where(bits == 1, 1.0, -1.0)
