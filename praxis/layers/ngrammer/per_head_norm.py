# SPDX-License-Identifier: Apache-2.0
"""What n-grammers do with each head of the embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from praxis import base_layer, pax_fiddle
from praxis.layers import normalizations


class PerHeadNorm(base_layer.BaseLayer):
  """Normalises each head of the embeddings by a layer norm of its own."""

  # Size of one head, and how many there are.
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
    """Returns embeddings in fprop_dtype, by head."""
    heads = (self.num_heads, self.dim_per_head)
    if embs.shape[2:] not in (heads, (self.num_heads * self.dim_per_head,)):
      raise ValueError(
        f'input_embs of {type(self).__name__} {self.name!r} must end in '
        f'num_heads, dim_per_head = {heads}, or their product, got '
        f'{embs.shape}'
      )
    return self._cast_to_fprop_dtype(embs).reshape(*embs.shape[:2], *heads)

  def _finish(
    self,
    heads: Float[Array, 'B L N H'],
    paddings: Num[Array, 'B L'] | None,
    merge_heads: bool | None,
  ) -> Float[Array, 'B L *D']:
    """Returns 0 for padding, and heads merged or apart."""
    if paddings is not None:
      heads *= (1 - paddings[:, :, None, None]).astype(heads.dtype)
    return heads.reshape(*heads.shape[:2], -1) if merge_heads else heads


class NgrammerStub(PerHeadNorm):
  """An n-grammer without n-grams: only normalises the embeddings.

  It has the arguments of VQNgrammer, so that one can replace the other.
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
    """Returns the embeddings, each head normalised."""
    heads = self._split_heads(input_embs)
    heads = norm_heads(self.emb_layer_norm, heads)
    return self._finish(heads, paddings, merge_heads)

  def extend_step(
    self,
    input_embs: Float[Array, 'B L *D'],
    step: int | Int[Array, ''],
    merge_heads: bool | None = True,
    attention_score: Float[Array, 'B N L'] | None = None,
  ) -> Float[Array, 'B *E']:
    """Returns what `__call__` gives at `step`."""
    current = jax.lax.dynamic_slice_in_dim(input_embs, step, 1, axis=1)
    outputs = self(None, current, merge_heads=bool(merge_heads))
    return jnp.squeeze(outputs, axis=1)


class NgramCombiner(PerHeadNorm):
  """Puts vectors of n-grams next to, or adds them to, embeddings."""

  # How many n-grams have a vector.
  ngram_vocab_size: int = 768 * 256
  # Size of an n-gram's vector, of each head.
  ngram_emb_dim: int = 8
  # Whether n-grams take the place of the last dimensions of each head, or are
  # added to it.
  concat_ngrams: bool = True

  def setup(self) -> None:
    super().setup()
    check_ngram_emb_dim(self)
    self._create_norms('ngram_layer_norm', self.ngram_emb_dim)

  def _combine(
    self, heads: Float[Array, 'B L N H'], ngrams: Float[Array, 'B L N G']
  ) -> Float[Array, 'B L N H']:
    """Returns normalised embeddings with normalised n-grams."""
    heads = norm_heads(self.emb_layer_norm, heads)
    ngrams = norm_heads(self.ngram_layer_norm, ngrams)
    if not self.concat_ngrams:
      return heads + ngrams
    kept = self.dim_per_head - self.ngram_emb_dim
    return jnp.concatenate([heads[..., :kept], ngrams], axis=-1)


def norm_heads(
  norms: Sequence[base_layer.BaseLayer], heads: Float[Array, 'B L N H']
) -> Float[Array, 'B L N H']:
  """Returns head i as norms[i] gives it."""
  normed = [norm(heads[:, :, i]) for i, norm in enumerate(norms)]
  return jnp.stack(normed, axis=2)


def check_ngram_emb_dim(layer: base_layer.BaseLayer) -> None:
  """Raises ValueError if n-grams do not fit into a head."""
  size, dim = layer.ngram_emb_dim, layer.dim_per_head
  if size <= 0 or size > dim or (size != dim and not layer.concat_ngrams):
    want = f'at most {dim}' if layer.concat_ngrams else f'{dim}'
    raise ValueError(
      f'{type(layer).__name__} {layer.name!r} needs ngram_emb_dim {want}, from '
      f'dim_per_head with concat_ngrams={layer.concat_ngrams}, got {size}'
    )
