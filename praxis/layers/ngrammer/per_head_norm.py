# SPDX-License-Identifier: Apache-2.0
"""Layer norm of each head, and its combination with n-gram embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from praxis import base_layer, pax_fiddle
from praxis.layers import normalizations


class PerHeadNorm(base_layer.BaseLayer):
  """Base of N-Grammers: a separate layer norm of each head."""

  # Dimension per head H, and number of heads N.
  dim_per_head: int = 0
  num_heads: int = 0

  def setup(self) -> None:
    if self.dim_per_head <= 0 or self.num_heads <= 0:
      raise ValueError(
        f'{type(self).__name__} {self.name!r} needs dim_per_head > 0 and '
        f'num_heads > 0, got {self.dim_per_head} and {self.num_heads}'
      )
    self._create_norms('emb_layer_norm', self.dim_per_head)

  def _create_norms(self, name: str, dim: int) -> None:
    norm = pax_fiddle.Config(normalizations.LayerNorm, dim=dim)
    self.create_children(name, [norm] * self.num_heads)

  def _split_heads(
    self, embs: Float[Array, 'B L *D']
  ) -> Float[Array, 'B L N H']:
    """Returns the embeddings in fprop_dtype, split into heads."""
    heads = (self.num_heads, self.dim_per_head)
    if embs.shape[2:] not in (heads, (self.num_heads * self.dim_per_head,)):
      raise ValueError(
        f'input_embs of {type(self).__name__} {self.name!r} must end in '
        f'(num_heads, dim_per_head) = {heads}, or their product, got '
        f'{embs.shape}'
      )
    return self._cast_to_fprop_dtype(embs).reshape(*embs.shape[:2], *heads)

  def _mask_and_merge(
    self,
    heads: Float[Array, 'B L N H'],
    paddings: Num[Array, 'B L'] | None,
    merge_heads: bool | None,
  ) -> Float[Array, 'B L *D']:
    """Sets padded positions to 0, and merges heads if requested."""
    if paddings is not None:
      heads *= (1 - paddings[:, :, None, None]).astype(heads.dtype)
    return heads.reshape(*heads.shape[:2], -1) if merge_heads else heads


class NgrammerStub(PerHeadNorm):
  """Per-head layer norm without n-grams, as a baseline of `VQNgrammer`.

  It takes the arguments of `VQNgrammer` and ignores those that it does not use.
  """

  def __call__(
    self,
    input_ids: Int[Array, 'B L *N'] | None,
    input_embs: Float[Array, 'B L *D'],
    paddings: Num[Array, 'B L'] | None = None,
    segment_pos: Int[Array, 'B L'] | None = None,
    merge_heads: bool = True,
    attention_scores: Float[Array, 'B N L L'] | None = None,
    emb_var: Float[Array, 'V D'] | None = None,
    check_time_step_zero: bool = False,
  ) -> Float[Array, 'B L *E']:
    """Returns the embeddings, each head normalized.

    Args:
      input_ids: ignored.
      input_embs: embeddings, [B, L, N * H] or [B, L, N, H].
      paddings: 1 for padded positions; their outputs are 0.
      segment_pos: ignored.
      merge_heads: returns [B, L, N * H] instead of [B, L, N, H].
      attention_scores: ignored.
      emb_var: ignored.
      check_time_step_zero: ignored.
    """
    heads = self._split_heads(input_embs)
    heads = norm_heads(self.emb_layer_norm, heads)
    return self._mask_and_merge(heads, paddings, merge_heads)

  def extend_step(
    self,
    input_embs: Float[Array, 'B L *D'],
    step: int | Int[Array, ''],
    merge_heads: bool | None = True,
    attention_score: Float[Array, 'B N L'] | None = None,
  ) -> Float[Array, ' B *E']:
    """Returns the output of `__call__` at `step`.

    Args:
      input_embs: embeddings of all steps.
      step: the position.
      merge_heads: returns [B, N * H] instead of [B, N, H].
      attention_score: ignored.
    """
    current = jax.lax.dynamic_slice_in_dim(input_embs, step, 1, axis=1)
    outputs = self(None, current, merge_heads=bool(merge_heads))
    return jnp.squeeze(outputs, axis=1)


class NgramCombiner(PerHeadNorm):
  """Base of N-Grammers that concatenate or add n-gram embeddings."""

  # Size of the n-gram vocabulary.
  ngram_vocab_size: int = 768 * 256
  # Dimension of an n-gram embedding per head, G.
  ngram_emb_dim: int = 8
  # Replaces the last G dimensions of each head by the n-gram embedding. If
  # False, the n-gram embedding is added, which needs G = H.
  concat_ngrams: bool = True

  def setup(self) -> None:
    super().setup()
    check_ngram_emb_dim(self)
    self._create_norms('ngram_layer_norm', self.ngram_emb_dim)

  def _add_ngrams(
    self, heads: Float[Array, 'B L N H'], ngrams: Float[Array, 'B L N G']
  ) -> Float[Array, 'B L N H']:
    """Returns the heads combined with the n-grams, both normalized."""
    heads = norm_heads(self.emb_layer_norm, heads)
    ngrams = norm_heads(self.ngram_layer_norm, ngrams)
    if not self.concat_ngrams:
      return heads + ngrams
    head_dims = self.dim_per_head - self.ngram_emb_dim
    return jnp.concatenate([heads[..., :head_dims], ngrams], axis=-1)


def norm_heads(
  norms: Sequence[base_layer.BaseLayer], heads: Float[Array, 'B L N H']
) -> Float[Array, 'B L N H']:
  """Applies norms[i] to head i."""
  normed = [norm(heads[:, :, i]) for i, norm in enumerate(norms)]
  return jnp.stack(normed, axis=2)


def check_ngram_emb_dim(layer: base_layer.BaseLayer) -> None:
  """Checks that n-gram embeddings fit into a head.

  Raises:
    ValueError: `ngram_emb_dim` is not positive, exceeds `dim_per_head`, or
      differs from it without `concat_ngrams`.
  """
  size, dim = layer.ngram_emb_dim, layer.dim_per_head
  if size <= 0 or size > dim or (size != dim and not layer.concat_ngrams):
    expected = f'in [1, {dim}]' if layer.concat_ngrams else f'{dim}'
    raise ValueError(
      f'ngram_emb_dim of {type(layer).__name__} {layer.name!r} must be '
      f'{expected} for dim_per_head={dim} and '
      f'concat_ngrams={layer.concat_ngrams}, got {size}'
    )
