# SPDX-License-Identifier: Apache-2.0
"""An n-grammer whose unigrams are clusters of the embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num

from praxis import base_layer, pax_fiddle
from praxis.base_layer import WeightHParams, WeightInit
from praxis.layers.ngrammer import vector_quantization
from praxis.layers.ngrammer.ngram import Ngrammer
from praxis.layers.ngrammer.per_head_norm import check_ngram_emb_dim

_CACHE = 'input_id_to_cluster_id_cache'


class VQNgrammer(base_layer.BaseLayer):
  """Adds vectors of bigrams of clusters to embeddings.

  The clusters of token embeddings can be kept in a table by token, for which
  unigram_vocab_size is set: training fills it, decoding may read it.
  """

  # How many bigrams have a vector.
  ngram_vocab_size: int = 768 * 256
  # How many tokens there are; 0 where inputs are not embeddings of tokens.
  unigram_vocab_size: int = 0
  # Size of a bigram's vector, of each head.
  ngram_emb_dim: int = 8
  # Whether an input's partner is the one it attends to most, instead of the
  # one before.
  ngram_using_attention_scores: bool = False
  # Whether partners by attention come before the input.
  causal_attention: bool = True
  # Whether n-grams take the place of the last dimensions of each head, or are
  # added to it.
  concat_ngrams: bool = False
  # How many clusters each head has.
  num_clusters: int = 0
  # How many heads there are, and the size of one.
  num_heads: int = 0
  dim_per_head: int = 0
  # How much of a centroid a step keeps; added to the size of a cluster.
  decay: float = 0.999
  epsilon: float = 1e-6
  # Whether clusters are read from the table, by token; in eval only.
  use_cached_input_ids_to_cluster_ids: bool = False
  # Whether training stores the clusters of the batch in the table.
  enable_cache_updates: bool = True
  # Every how many training steps, and in which besides, the clusters of all
  # tokens are stored.
  full_update_cache_frequency: int = 0
  full_update_cache_steps: tuple[int, ...] = ()
  # Whether inputs are scaled to length 1 before they are clustered.
  prenormalize: bool = False

  @classmethod
  def set_canonical_sharding_params(
    cls,
    vqngrammer_p: pax_fiddle.Config,
    *,
    replica_axis: str,
    data_axis: str,
    mdl_axis: str,
    ici_mesh_shape: Sequence[int] | None,
    dcn_mesh_shape: Sequence[int] | None,
    mesh_axis_names: Sequence[str] | None,
    training_optimized: bool,
  ) -> pax_fiddle.Config:
    """Splits the tables of a Config over the model and data axes."""
    del replica_axis, training_optimized
    vqngrammer_p.set(
      ici_mesh_shape=ici_mesh_shape,
      dcn_mesh_shape=dcn_mesh_shape,
      mesh_axis_names=mesh_axis_names,
    )
    vqngrammer_p.weight_split_dims_mapping.wt = [mdl_axis, data_axis]
    return vqngrammer_p

  def setup(self) -> None:
    check_ngram_emb_dim(self)
    vq = pax_fiddle.Config(
      vector_quantization.VectorQuantization,
      num_clusters=self.num_clusters,
      decay=self.decay,
      epsilon=self.epsilon,
      prenormalize=self.prenormalize,
    )
    ngram = self._ngram_tpl().set(
      ngram_vocab_size=self.ngram_vocab_size,
      unigram_vocab_size=self.num_clusters,
      ngram_emb_dim=self.ngram_emb_dim,
      concat_ngrams=self.concat_ngrams,
    )
    ngram.weight_split_dims_mapping.wt = self.weight_split_dims_mapping.wt
    for name, child in (('vq_layer', vq), ('ngram_layer', ngram)):
      heads = {'num_heads': self.num_heads, 'dim_per_head': self.dim_per_head}
      self.create_child(name, child.set(**heads))
    if self.unigram_vocab_size:
      shape = [self.unigram_vocab_size, self.num_heads]
      self._create_integers(_CACHE, shape)
    elif self.use_cached_input_ids_to_cluster_ids or self._fills_table:
      raise ValueError(
        f'VQNgrammer {self.name!r} keeps clusters by token: set '
        f'unigram_vocab_size to the number of tokens, got 0'
      )
    if self._fills_table:
      self._create_integers('count', [])

  def _ngram_tpl(self) -> pax_fiddle.Config:
    """Returns the Config of ngram_layer; quantised variants override it."""
    return pax_fiddle.Config(Ngrammer)

  def _create_integers(self, name: str, shape: list[int]) -> None:
    hparams = WeightHParams(
      shape=shape,
      init=WeightInit.Constant(0),
      dtype=jnp.int32,
      mesh_shape=self.mesh_shape,
    )
    self.create_variable(name, hparams, trainable=False)

  @property
  def _fills_table(self) -> bool:
    """Whether training stores the clusters of all tokens at times."""
    steps = self.full_update_cache_steps
    return bool(self.full_update_cache_frequency or steps)

  def __call__(
    self,
    input_ids: Int[Array, 'B L *N'] | None,
    input_embs: Float[Array, 'B L *D'],
    paddings: Num[Array, 'B L'] | None = None,
    segment_pos: Int[Array, 'B L'] | None = None,
    merge_heads: bool = True,
    attention_scores: Float[Array, 'B N L L'] | None = None,
    emb_var: Float[Array, 'V E'] | None = None,
    check_time_step_zero: bool = False,
  ) -> Float[Array, 'B L *F']:
    """Returns the embeddings with those of bigrams of clusters.

    Args:
      input_ids: the tokens, for the table of clusters; None where inputs are
        not embeddings of tokens.
      input_embs: what is clustered, with heads merged or apart.
      paddings: 1 where the output is to be 0.
      segment_pos: position in the segment, of packed inputs.
      merge_heads: whether the output has heads merged.
      attention_scores: attention probabilities, where partners are chosen by
        them.
      emb_var: embeddings of all tokens, where all of the table is filled.
      check_time_step_zero: whether an input is in cluster 0 if its embedding
        and its id are 0: what decoding has before the first token.
    """
    pair_ids = None
    if self.use_cached_input_ids_to_cluster_ids:
      cluster_ids = self._cached_cluster_ids(input_ids)
    else:
      pair_ids = self._partners(attention_scores)
      distances, _ = self.vq_layer(input_embs, paddings)
      cluster_ids = jnp.argmin(distances, axis=-1)
      if check_time_step_zero:
        is_token = _is_token(input_ids, input_embs)
        cluster_ids = jnp.where(is_token, cluster_ids, 0)
      if not self.do_eval:
        self._store(input_ids, cluster_ids)
        self._maybe_store_all(emb_var)
    return self.ngram_layer(
      cluster_ids,
      input_embs,
      paddings,
      segment_pos,
      merge_heads=merge_heads,
      pair_ids=pair_ids,
    )

  def extend_step(
    self,
    input_embs: Float[Array, 'B L *D'],
    step: int | Int[Array, ''],
    merge_heads: bool | None = True,
    attention_score: Float[Array, 'B N L'] | None = None,
  ) -> Float[Array, 'B *E']:
    """Returns the output at `step`, of which inputs after it are no part.

    Args:
      input_embs: inputs up to `step`, and anything after.
      step: the position.
      merge_heads: whether the output has heads merged.
      attention_score: attention probabilities of `step`, where partners are
        chosen by them.
    """
    self._check_scores(attention_score, 'attention_score')
    step = jnp.asarray(step)
    heads = input_embs.reshape(*input_embs.shape[:2], self.num_heads, -1)
    if attention_score is None or not self.ngram_using_attention_scores:
      partners = jnp.full(heads.shape[::2], jnp.maximum(step - 1, 0))
    elif self.causal_attention:
      is_before = jnp.arange(heads.shape[1]) < step
      partners = _argmax_where(is_before, attention_score)
    else:
      raise ValueError(
        f'VQNgrammer {self.name!r} cannot decode with causal_attention=False: '
        'what it would pair with is not known yet'
      )
    previous = jnp.take_along_axis(heads, partners[:, None, :, None], axis=1)
    current = jax.lax.dynamic_slice_in_dim(heads, step, 1, axis=1)
    pair = jnp.concatenate([previous, current], axis=1)
    distances, _ = self.vq_layer(pair, summarize_and_update=False)
    ids = jnp.argmin(distances, axis=-1)
    # The first input has no partner.
    ids = jnp.where((step == 0) & jnp.array([[[True], [False]]]), 0, ids)
    return self.ngram_layer(ids, pair, merge_heads=bool(merge_heads))[:, 1]

  def _partners(
    self, scores: Float[Array, 'B N L L'] | None
  ) -> Int[Array, 'B N L'] | None:
    """Returns whom each input attends to most; L for nobody."""
    self._check_scores(scores, 'attention_scores')
    if scores is None or not self.ngram_using_attention_scores:
      return None
    if not self.causal_attention:
      return jnp.argmax(scores, axis=-1)
    length = scores.shape[-1]
    positions = jnp.arange(length)
    partners = _argmax_where(positions < positions[:, None], scores)
    return jnp.where(positions == 0, length, partners)

  def _check_scores(self, scores: Array | None, name: str) -> None:
    if self.ngram_using_attention_scores and scores is None:
      raise ValueError(
        f'VQNgrammer {self.name!r} pairs by attention: pass {name}, or unset '
        'ngram_using_attention_scores'
      )

  def _cached_cluster_ids(
    self, input_ids: Int[Array, 'B L'] | None
  ) -> Int[Array, 'B L N']:
    if not self.do_eval or input_ids is None:
      raise ValueError(
        f'VQNgrammer {self.name!r} reads clusters of tokens from its table: '
        'that needs input_ids and is for eval, got '
        f'input_ids={type(input_ids).__name__} and do_eval={self.do_eval}; '
        'unset use_cached_input_ids_to_cluster_ids to train'
      )
    return self.get_var(_CACHE)[input_ids]

  def _store(
    self, input_ids: Int[Array, 'B L'] | None, cluster_ids: Int[Array, 'B L N']
  ) -> None:
    """Puts the clusters of a batch into the table, if there is one."""
    has_table = self.unigram_vocab_size and self.enable_cache_updates
    if has_table and input_ids is not None:
      flat = cluster_ids.reshape(-1, self.num_heads).astype(jnp.int32)
      table = self.get_var(_CACHE).at[input_ids.reshape(-1)].set(flat)
      self.update_var(_CACHE, table)

  def _maybe_store_all(self, emb_var: Float[Array, 'V D'] | None) -> None:
    """Puts the clusters of all tokens into the table, if it is time to."""
    if not self._fills_table:
      return
    want = (self.unigram_vocab_size, self.num_heads * self.dim_per_head)
    if emb_var is None or emb_var.shape != want:
      got = None if emb_var is None else emb_var.shape
      raise ValueError(
        f'VQNgrammer {self.name!r} stores the clusters of all tokens: emb_var '
        f'must be their embeddings, {want}, got {got}'
      )
    count, table = self.get_var('count'), self.get_var(_CACHE)
    is_due = jnp.any(count == jnp.asarray(self.full_update_cache_steps or -1))
    if self.full_update_cache_frequency:
      is_due |= count % self.full_update_cache_frequency == 0
    means = self.vq_layer.centroids()
    heads = self.vq_layer.split(emb_var[None])[0]

    def cluster(token: Float[Array, 'N H']) -> Int[Array, 'N']:
      distances = vector_quantization.squared_distances(token, means)
      return jnp.argmin(distances, axis=-1).astype(jnp.int32)

    # In blocks: distances of all tokens at once are many.
    every = lambda: jax.lax.map(cluster, heads, batch_size=_BLOCK)
    self.update_var(_CACHE, jax.lax.cond(is_due, every, lambda: table))
    self.update_var('count', count + 1)


_BLOCK = 8192


def _argmax_where(mask: Any, scores: Float[Array, '*B L']) -> Int[Array, '*B']:
  """Returns the index of the highest score where `mask` holds."""
  return jnp.argmax(jnp.where(mask, scores, -jnp.inf), axis=-1)


def _is_token(
  input_ids: Int[Array, 'B L *N'] | None, input_embs: Float[Array, 'B L *D']
) -> Bool[Array, 'B L M']:
  """Whether an id, or an entry of the embedding, is not 0; by head if known."""
  by_emb = jnp.any(input_embs != 0, axis=-1)
  by_emb = by_emb if by_emb.ndim == 3 else by_emb[:, :, None]
  if input_ids is None:
    return by_emb
  by_id = input_ids != 0
  by_id = jnp.any(by_id, axis=-1) if by_id.ndim == 3 else by_id
  return by_emb | by_id[:, :, None]
