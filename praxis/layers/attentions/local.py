# SPDX-License-Identifier: Apache-2.0
"""Self attention to a window, computed block by block.

Shapes: B batch, T time, N heads, H head, W block size, U = ⌈T / W⌉ blocks, C
what a block sees.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from praxis.layers.attentions import blocks, dot_product, products, window


class LocalSelfAttention(dot_product.DotProductAttention):
  """Attends to the positions around each one.

  Blocks of queries see their own and the neighbouring keys, so that time and
  memory grow with T · C. The probabilities it returns are [B, N, U, W, C].
  """

  # Number of queries that are computed together; the smallest that is possible
  # when absent.
  block_size: int | None = None
  # How many positions are visible up to and including the current one.
  left_context: int | None = None
  # How many positions are visible after the current one.
  right_context: int | None = None
  # Whether all logits are computed and masked; faster when a block is nearly
  # the sequence. Contexts may be absent then, for no limit; and probabilities
  # are [B, N, T, S].
  simulated: bool = False

  def _check_fields(self) -> None:
    super()._check_fields()
    if self.simulated:
      return
    if self.left_context is None or self.right_context is None:
      raise ValueError(
        'left_context and right_context must be numbers with simulated=False, '
        f'got {self.left_context} and {self.right_context}; set them, or '
        'simulated=True for no limit'
      )
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
    blocks.check_context(
      self._block_size(), self.left_context, self.right_context
    )

  def _block_size(self) -> int:
    if self.block_size is not None:
      return self.block_size
    return max(1, self.right_context, self.left_context - 1)

  def _window(self) -> window.Window:
    return window.Window(self.left_context, self.right_context)

  def _attend(
    self,
    query: products.Heads,
    key: products.SourceHeads,
    value: products.SourceHeads,
    mask: products.Mask,
    bias: products.Bias | None,
  ) -> tuple[products.Heads, Float[Array, 'B N ...']]:
    if self.simulated:
      return super()._attend(query, key, value, mask, bias)
    batch, length = query.shape[:2]
    if key.shape[1] != length:
      raise ValueError(
        f'{type(self).__name__} needs as many keys as queries ({length}), got '
        f'{key.shape[1]}; it is for self attention'
      )
    sizes = self._block_size(), self.left_context, self.right_context
    queries = blocks.convert_to_block(query, sizes[0])
    keys, values = (
      blocks.extract_block_context(x, *sizes) for x in (key, value)
    )
    mask = jnp.broadcast_to(mask, (batch, *mask.shape[1:]))
    mask = blocks.extract_block_mask(mask, *sizes)
    # Each block is an example whose first query stands after its left context.
    join = lambda x: x.reshape(-1, *x.shape[2:])
    encoded, probs = self._attend_all(
      *map(join, (queries, keys, values, mask)), None, self.left_context - 1
    )
    encoded = encoded.reshape(batch, -1, *encoded.shape[2:])[:, :length]
    probs = probs.reshape(batch, -1, *probs.shape[1:])
    return encoded, jnp.moveaxis(probs, 1, 2)
