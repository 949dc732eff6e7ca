# SPDX-License-Identifier: Apache-2.0
"""N-Grammer of latent unigrams: cluster ids of the embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num

from praxis import base_layer, pax_fiddle
from praxis.base_layer import WeightHParams, WeightInit
from praxis.layers.ngrammer import vector_quantization
from praxis.layers.ngrammer.ngram import Ngrammer
from praxis.layers.ngrammer.per_head_norm import check_ngram_emb_dim

_CACHE_NAME = 'input_id_to_cluster_id_cache'
# Tokens per block of a full update of the cache: the distances of all tokens
# do not fit into memory at once.
_TOKENS_PER_BLOCK = 8192


class VQNgrammer(base_layer.BaseLayer):
  """Augments embeddings with embeddings of bigrams of cluster ids.

  If unigram_vocab_size is set, training caches the cluster ids of each token,
  and evaluation can read them instead of computing distances.

  References: N-Grammer, https://arxiv.org/abs/2207.06366
  """

  # Size of the bigram vocabulary.
  ngram_vocab_size: int = 768 * 256
  # Number of tokens; 0 if the inputs are not token embeddings.
  unigram_vocab_size: int = 0
  # Dimension of a bigram embedding per head, G.
  ngram_emb_dim: int = 8
  # Pairs each position with the one of its largest attention probability
  # instead of the previous one.
  ngram_using_attention_scores: bool = False
  # Restricts pairing by attention to previous positions.
  causal_attention: bool = True
  # Replaces the last G dimensions of each head by the bigram embedding. If
  # False, the bigram embedding is added, which needs G = dim_per_head.
  concat_ngrams: bool = False
  # Number of clusters per head.
  num_clusters: int = 0
  # Number of heads N, and dimension per head H.
  num_heads: int = 0
  dim_per_head: int = 0
  # Decay of the centroids, and constant added to the cluster sizes.
  decay: float = 0.999
  epsilon: float = 1e-6
  # Reads the cluster ids of tokens from the cache; for evaluation only.
  use_cached_input_ids_to_cluster_ids: bool = False
  # Caches the cluster ids of each training batch.
  enable_cache_updates: bool = True
  # Interval in training steps, and additional steps, at which the cluster ids
  # of all tokens are cached.
  full_update_cache_frequency: int = 0
  full_update_cache_steps: tuple[int, ...] = ()
  # Normalizes heads to unit L2 norm before clustering.
  prenormalize: bool = False

  # Whether extend_step has the argument is_first, which praxis does not have.
  takes_first_tokens: ClassVar[bool] = True

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
    """Shards the n-gram tables of `vqngrammer_p` over model and data axes.

    Args:
      vqngrammer_p: Config to change.
      replica_axis: ignored.
      data_axis: mesh axis of the embedding dimension.
      mdl_axis: mesh axis of the vocabulary dimension.
      ici_mesh_shape: mesh shape within a slice.
      dcn_mesh_shape: mesh shape across slices; None is a single slice.
      mesh_axis_names: names of the mesh axes.
      training_optimized: ignored.
    """
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
      self._create_int_variable(_CACHE_NAME, shape)
    elif self.use_cached_input_ids_to_cluster_ids or self._has_full_updates:
      raise ValueError(
        f'VQNgrammer {self.name!r} caches cluster ids by token: set '
        'unigram_vocab_size to the number of tokens, got 0'
      )
    if self._has_full_updates:
      self._create_int_variable('count', [])

  def _ngram_tpl(self) -> pax_fiddle.Config:
    """Returns the Config of `ngram_layer`; subclasses override it."""
    return pax_fiddle.Config(Ngrammer)

  def _create_int_variable(self, name: str, shape: list[int]) -> None:
    hparams = WeightHParams(
      shape=shape,
      init=WeightInit.Constant(0),
      dtype=jnp.int32,
      mesh_shape=self.mesh_shape,
    )
    self.create_variable(name, hparams, trainable=False)

  @property
  def _has_full_updates(self) -> bool:
    """Whether training caches the cluster ids of all tokens at some steps."""
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
    """Returns the embeddings augmented with bigram embeddings.

    Args:
      input_ids: token ids, for the cache; None if the inputs are not token
        embeddings.
      input_embs: embeddings, [B, L, N * H] or [B, L, N, H].
      paddings: 1 for padded positions; their outputs are 0.
      segment_pos: position in the segment, for packed inputs.
      merge_heads: returns [B, L, N * H] instead of [B, L, N, H].
      attention_scores: attention probabilities; required by
        `ngram_using_attention_scores`.
      emb_var: embeddings of all tokens; required by full cache updates.
      check_time_step_zero: assigns cluster 0 to inputs whose embedding and id
        are 0, which decoding passes before the first token.
    """
    pair_ids = None
    if self.use_cached_input_ids_to_cluster_ids:
      cluster_ids = self._cached_cluster_ids(input_ids)
    else:
      pair_ids = self._pair_ids(attention_scores)
      distances, _ = self.vq_layer(input_embs, paddings)
      cluster_ids = jnp.argmin(distances, axis=-1)
      if check_time_step_zero:
        is_token = _is_token(input_ids, input_embs)
        cluster_ids = jnp.where(is_token, cluster_ids, 0)
      if not self.do_eval:
        self._update_cache(input_ids, cluster_ids)
        self._maybe_update_full_cache(emb_var)
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
    is_first: Bool[Array, ' B'] | None = None,
  ) -> Float[Array, ' B *E']:
    """Returns the output at `step`; inputs after `step` are ignored.

    Args:
      input_embs: embeddings of all steps, [B, L, N * H] or [B, L, N, H].
      step: the position.
      merge_heads: returns [B, N * H] instead of [B, N, H].
      attention_score: attention probabilities of `step`; required by
        `ngram_using_attention_scores`.
      is_first: whether `step` is the first token, after columns of padding;
        None: only step 0 is.

    Raises:
      ValueError: positions are paired by attention that is not causal.
    """
    self._check_scores(attention_score, 'attention_score')
    step = jnp.asarray(step)
    heads = input_embs.reshape(*input_embs.shape[:2], self.num_heads, -1)
    if attention_score is None or not self.ngram_using_attention_scores:
      paired_steps = jnp.full(heads.shape[::2], jnp.maximum(step - 1, 0))
    elif self.causal_attention:
      is_before = jnp.arange(heads.shape[1]) < step
      paired_steps = _masked_argmax(attention_score, is_before)
    else:
      raise ValueError(
        f'VQNgrammer {self.name!r} cannot decode with causal_attention=False, '
        'which pairs positions with later ones; set it to True'
      )
    previous = jnp.take_along_axis(
      heads, paired_steps[:, None, :, None], axis=1
    )
    current = jax.lax.dynamic_slice_in_dim(heads, step, 1, axis=1)
    pair = jnp.concatenate([previous, current], axis=1)
    distances, _ = self.vq_layer(pair, summarize_and_update=False)
    ids = jnp.argmin(distances, axis=-1)
    # A first token is unpaired, which is id 0.
    is_unpaired = jnp.broadcast_to(step == 0, ids.shape[:1])
    if is_first is not None:
      is_unpaired |= is_first
    ids = ids.at[:, 0].set(jnp.where(is_unpaired[:, None], 0, ids[:, 0]))
    return self.ngram_layer(ids, pair, merge_heads=bool(merge_heads))[:, 1]

  def _pair_ids(
    self, scores: Float[Array, 'B N L L'] | None
  ) -> Int[Array, 'B N L'] | None:
    """Returns the position of the largest score; L if there is none."""
    self._check_scores(scores, 'attention_scores')
    if scores is None or not self.ngram_using_attention_scores:
      return None
    if not self.causal_attention:
      return jnp.argmax(scores, axis=-1)
    length = scores.shape[-1]
    positions = jnp.arange(length)
    pair_ids = _masked_argmax(scores, positions < positions[:, None])
    return jnp.where(positions == 0, length, pair_ids)

  def _check_scores(self, scores: Array | None, name: str) -> None:
    if self.ngram_using_attention_scores and scores is None:
      raise ValueError(
        f'{name} of VQNgrammer {self.name!r} must not be None if '
        'ngram_using_attention_scores=True; pass it, or set the field to False'
      )

  def _cached_cluster_ids(
    self, input_ids: Int[Array, 'B L'] | None
  ) -> Int[Array, 'B L N']:
    if not self.do_eval or input_ids is None:
      raise ValueError(
        'use_cached_input_ids_to_cluster_ids=True of VQNgrammer '
        f'{self.name!r} needs do_eval=True and input_ids, got do_eval='
        f'{self.do_eval} and input_ids of type {type(input_ids).__name__}; set '
        'it to False to train'
      )
    return self.get_var(_CACHE_NAME)[input_ids]

  def _update_cache(
    self, input_ids: Int[Array, 'B L'] | None, cluster_ids: Int[Array, 'B L N']
  ) -> None:
    """Caches the cluster ids of a batch if updates are enabled."""
    is_enabled = self.unigram_vocab_size and self.enable_cache_updates
    if is_enabled and input_ids is not None:
      flat = cluster_ids.reshape(-1, self.num_heads).astype(jnp.int32)
      cache = self.get_var(_CACHE_NAME).at[input_ids.reshape(-1)].set(flat)
      self.update_var(_CACHE_NAME, cache)

  def _maybe_update_full_cache(
    self, emb_var: Float[Array, 'V D'] | None
  ) -> None:
    """Caches the cluster ids of all tokens if the step is due."""
    if not self._has_full_updates:
      return
    expected = (self.unigram_vocab_size, self.num_heads * self.dim_per_head)
    if emb_var is None or emb_var.shape != expected:
      got = None if emb_var is None else emb_var.shape
      raise ValueError(
        f'emb_var of VQNgrammer {self.name!r} must be the embeddings '
        f'{expected} of all tokens for full cache updates, got {got}'
      )
    count, cache = self.get_var('count'), self.get_var(_CACHE_NAME)
    is_due = jnp.any(count == jnp.asarray(self.full_update_cache_steps or -1))
    if self.full_update_cache_frequency:
      is_due |= count % self.full_update_cache_frequency == 0
    means = self.vq_layer.centroids()
    heads = self.vq_layer.split_heads(emb_var[None])[0]

    def nearest_clusters(token: Float[Array, 'N H']) -> Int[Array, ' N']:
      distances = vector_quantization.squared_distances(token, means)
      return jnp.argmin(distances, axis=-1).astype(jnp.int32)

    compute_cache = lambda: jax.lax.map(
      nearest_clusters, heads, batch_size=_TOKENS_PER_BLOCK
    )
    self.update_var(
      _CACHE_NAME, jax.lax.cond(is_due, compute_cache, lambda: cache)
    )
    self.update_var('count', count + 1)


def _masked_argmax(
  scores: Float[Array, '*B L'], mask: Bool[Array, '...']
) -> Int[Array, '*B']:
  """Returns the index of the highest score where `mask` is true."""
  return jnp.argmax(jnp.where(mask, scores, -jnp.inf), axis=-1)


def _is_token(
  input_ids: Int[Array, 'B L *N'] | None, input_embs: Float[Array, 'B L *D']
) -> Bool[Array, 'B L M']:
  """Whether the id or an element of the embedding is not 0.

  M is the number of heads if the embeddings are split, else 1.
  """
  by_emb = jnp.any(input_embs != 0, axis=-1)
  by_emb = by_emb if by_emb.ndim == 3 else by_emb[:, :, None]
  if input_ids is None:
    return by_emb
  by_id = input_ids != 0
  by_id = jnp.any(by_id, axis=-1) if by_id.ndim == 3 else by_id
  return by_emb | by_id[:, :, None]
