# SPDX-License-Identifier: Apache-2.0
"""Local self-attention: each query sees a window, computed block by block.

Blocks of queries attend to the keys of their own and the neighboring blocks,
so that time and memory grow with T · C instead of T².

Shapes: B batch, T time, N heads, H head dimension, W block size, U = ⌈T / W⌉
blocks, L and R the left and right context (L includes the position itself),
C = W + L - 1 + R keys per block.
"""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from praxis.layers.attentions import attention_core, dot_product, masks


class LocalSelfAttention(dot_product.DotProductAttention):
  """Self-attention to a window.

  The probabilities are [B, N, U, W, C]; None from a kernel.
  """

  # Number of queries in a block; the smallest possible when None.
  block_size: int | None = None
  # Number of visible positions up to and including the query's own.
  left_context: int | None = None
  # Number of visible positions after the query's own.
  right_context: int | None = None
  # Whether all T² logits are computed and masked, which is faster when a block
  # is nearly the sequence. Contexts may then be None, for no limit; the
  # probabilities are [B, N, T, S].
  simulated: bool = False

  # Blocks of queries compute the same.
  has_kernel: ClassVar[bool] = True

  def _check_fields(self) -> None:
    super()._check_fields()
    if self.simulated:
      return
    left_context, right_context = self._contexts()
    if self.relative_bias_tpl is not None:
      raise ValueError(
        'relative_bias_tpl must be None with simulated=False, got a template; '
        'set simulated=True or use LocalSelfAttentionRelativeBias'
      )
    if getattr(self.ngrammer_tpl, 'ngram_using_attention_scores', False):
      raise ValueError(
        'ngram_using_attention_scores must be False with simulated=False, got '
        'True; set simulated=True, which has the scores of all positions'
      )
    check_context(self._block_size(), left_context, right_context)

  def _contexts(self) -> tuple[int, int]:
    """Returns the left and the right context, which blocks need."""
    if self.left_context is None or self.right_context is None:
      raise ValueError(
        'left_context and right_context must be numbers with simulated=False, '
        f'got {self.left_context} and {self.right_context}; set them, or '
        'simulated=True for no limit'
      )
    return self.left_context, self.right_context

  def _block_size(self) -> int:
    if self.block_size is not None:
      return self.block_size
    left_context, right_context = self._contexts()
    return max(1, right_context, left_context - 1)

  def _window(self) -> masks.ContextWindow:
    return masks.ContextWindow(self.left_context, self.right_context)

  def _attend(
    self,
    inputs: attention_core.AttentionInputs,
    query_pos: dot_product.Positions,
  ) -> tuple[attention_core.QueryHeads, Float[Array, 'B N ...'] | None]:
    if self.simulated:
      return super()._attend(inputs, query_pos)
    query, key, value, mask, _ = inputs
    batch, length = query.shape[:2]
    if key.shape[1] != length:
      raise ValueError(
        f'{type(self).__name__} needs as many keys as queries ({length}), got '
        f'{key.shape[1]}; it is for self attention'
      )
    left_context, right_context = self._contexts()
    sizes = self._block_size(), left_context, right_context
    mask = jnp.broadcast_to(mask, (batch, *mask.shape[1:]))
    blocks = (
      convert_to_block(query, sizes[0]),
      extract_block_context(key, *sizes),
      extract_block_context(value, *sizes),
      extract_block_mask(mask, *sizes),
    )
    # Every block becomes an example; its first query is at the end of the left
    # context.
    merge = lambda x: x.reshape(-1, *x.shape[2:])
    encoded, probs = self._attend_dense(
      attention_core.AttentionInputs(*map(merge, blocks)), left_context - 1
    )
    encoded = encoded.reshape(batch, -1, *encoded.shape[2:])[:, :length]
    probs = probs.reshape(batch, -1, *probs.shape[1:])
    return encoded, jnp.moveaxis(probs, 1, 2)


def convert_to_block(
  x: Shaped[Array, 'B T ...'],
  block_size: int,
  padding_val: float | Array = 0.0,
) -> Shaped[Array, 'B U W ...']:
  """Returns `x` in blocks, the last one padded with `padding_val`.

  Raises:
    ValueError: the block size is not positive.
  """
  if block_size < 1:
    raise ValueError(
      f'block_size must be at least 1, got {block_size}; it is the number of '
      'positions that are computed together'
    )
  batch, length = x.shape[:2]
  num_blocks = -(-length // block_size)
  widths = [(0, 0)] * x.ndim
  widths[1] = (0, num_blocks * block_size - length)
  padded = jnp.pad(x, widths, constant_values=padding_val)
  return padded.reshape(batch, num_blocks, block_size, *x.shape[2:])


def extract_block_context(
  x: Shaped[Array, 'B T ...'],
  block_size: int,
  left_context: int,
  right_context: int,
  padding_val: float | Array = 0.0,
) -> Shaped[Array, 'B U C ...']:
  """Returns the positions of each block with its left and right context.

  Args:
    x: a sequence.
    block_size: number of positions in a block.
    left_context: number of positions before the block, plus one.
    right_context: number of positions after the block.
    padding_val: value of positions outside the sequence.

  Raises:
    ValueError: a context is longer than a block.
  """
  check_context(block_size, left_context, right_context)
  blocks = convert_to_block(x, block_size, padding_val)
  outside = jnp.full_like(blocks[:, :1], padding_val)
  before = jnp.concatenate([outside, blocks[:, :-1]], axis=1)
  after = jnp.concatenate([blocks[:, 1:], outside], axis=1)
  left = before[:, :, block_size - left_context + 1 :]
  right = after[:, :, :right_context]
  return jnp.concatenate([left, blocks, right], axis=2)


def extract_block_mask(
  mask: Float[Array, 'B N #T S'],
  block_size: int,
  left_context: int,
  right_context: int,
) -> Float[Array, 'B U N #W C']:
  """Returns the additive mask of each block's queries and keys.

  Queries that pad the last block see no key.

  Args:
    mask: of all queries and keys.
    block_size: number of positions in a block.
    left_context: number of keys before the block, plus one.
    right_context: number of keys after the block.
  """
  masked_value = masks.large_negative(mask.dtype)
  num_keys = mask.shape[-1]
  num_blocks = -(-num_keys // block_size)
  context = block_size + left_context - 1 + right_context
  first = np.arange(num_blocks)[:, None] * block_size - left_context + 1
  columns = first + np.arange(context)
  inside = (columns >= 0) & (columns < num_keys)
  columns = np.clip(columns, 0, num_keys - 1)
  rows = jnp.moveaxis(mask, 1, 2)
  if mask.shape[2] == 1:
    rows = rows[:, jnp.newaxis]
  else:
    rows = convert_to_block(rows, block_size, masked_value)
  # rows: [B, U or 1, W or 1, N, S].
  take = jax.vmap(lambda x, i: x[..., i], in_axes=(1, 0), out_axes=1)
  if rows.shape[1] == 1:
    rows = jnp.broadcast_to(rows, (rows.shape[0], num_blocks, *rows.shape[2:]))
  block_mask = jnp.moveaxis(take(rows, columns), 3, 2)
  visible = inside[:, np.newaxis, np.newaxis]
  if num_keys % block_size:
    query = np.arange(num_blocks * block_size).reshape(num_blocks, 1, -1, 1)
    visible = visible & (query < num_keys)
  return jnp.where(visible, block_mask, masked_value)


def check_context(
  block_size: int, left_context: int, right_context: int
) -> None:
  """Checks that a block and its neighbors contain the context.

  Raises:
    ValueError: a context is out of range.
  """
  if not 1 <= left_context <= block_size + 1:
    raise ValueError(
      'left_context must be at least 1 (the position itself) and at most '
      f'block_size + 1 = {block_size + 1}, got {left_context}; raise block_size'
    )
  if not 0 <= right_context <= block_size:
    raise ValueError(
      f'right_context must be from 0 to block_size = {block_size}, got '
      f'{right_context}; raise block_size'
    )
