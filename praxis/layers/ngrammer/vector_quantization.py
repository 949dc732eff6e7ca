# SPDX-License-Identifier: Apache-2.0
"""Online k-means clustering of attention heads."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from praxis import base_layer
from praxis.base_layer import WeightHParams


class VectorQuantization(base_layer.BaseLayer):
  """Vector quantization by online k-means, separately for each head.

  Training steps update the centroids by an exponential moving average.

  References: Theory and experiments on vector quantized autoencoders,
  https://arxiv.org/abs/1805.11063; Efficient content-based sparse attention
  with routing transformers, https://arxiv.org/abs/2003.05997
  """

  # Number of clusters per head, K.
  num_clusters: int = 0
  # Number of heads N, and dimension per head H.
  num_heads: int = 0
  dim_per_head: int = 0
  # Decay of the moving average of the centroids.
  decay: float = 0.999
  # Added to the cluster sizes to avoid division by 0.
  epsilon: float = 1e-6
  # Normalizes heads to unit L2 norm, which balances the clusters.
  prenormalize: bool = False

  def setup(self) -> None:
    sizes = (self.num_clusters, self.num_heads, self.dim_per_head)
    if min(sizes) <= 0:
      raise ValueError(
        f'VectorQuantization {self.name!r} needs num_clusters, num_heads and '
        f'dim_per_head > 0, got {sizes}'
      )
    flags = base_layer.WeightHParamsCollection
    means = WeightHParams(
      shape=[self.num_heads, self.num_clusters, self.dim_per_head],
      mesh_shape=self.mesh_shape,
      collections=[flags.REQUIRES_MEAN_SYNC],
    )
    self.create_variable('means', means, trainable=False)

  def centroids(self) -> Float[Array, 'N K H']:
    """Returns the centroids of each head."""
    return self.get_var('means')

  def __call__(
    self,
    inputs: Float[Array, 'B L *D'],
    paddings: Num[Array, 'B L'] | None = None,
    summarize_and_update: bool = True,
  ) -> tuple[Float[Array, 'B L N K'], Float[Array, 'B L N H']]:
    """Returns squared distances to the centroids, and the nearest centroids.

    Args:
      inputs: embeddings, [B, L, N * H] or [B, L, N, H].
      paddings: 1 for padded positions; they are not assigned to a cluster, and
        their nearest centroid is 0.
      summarize_and_update: writes summaries, and updates the centroids in
        training.
    """
    means = self.centroids()
    heads = self.split_heads(inputs)
    distances = squared_distances(heads, means)
    nearest = jnp.argmin(distances, axis=-1)
    assignments = jax.nn.one_hot(nearest, self.num_clusters, dtype=means.dtype)
    if paddings is not None:
      assignments *= 1 - paddings[:, :, None, None].astype(assignments.dtype)
    if summarize_and_update:
      self._summarize(nearest, means)
      if not self.do_eval:
        self._update(assignments, heads, means)
    return distances, jnp.einsum('blnk,nkh->blnh', assignments, means)

  def split_heads(
    self, inputs: Float[Array, 'B L *D']
  ) -> Float[Array, 'B L N H']:
    """Returns the heads in fprop_dtype, normalized if `prenormalize`."""
    heads = self._cast_to_fprop_dtype(inputs).reshape(
      *inputs.shape[:2], self.num_heads, self.dim_per_head
    )
    if not self.prenormalize:
      return heads
    # The gradient of a norm at 0 is NaN.
    squares = jnp.sum(jnp.square(heads), axis=-1, keepdims=True)
    return heads * jax.lax.rsqrt(jnp.where(squares > 0, squares, 1.0))

  def _update(
    self,
    assignments: Float[Array, 'B L N K'],
    heads: Float[Array, 'B L N H'],
    means: Float[Array, 'N K H'],
  ) -> None:
    """Updates the moving average of the centroids.

    The batch mean of an empty cluster is 0.
    """
    counts = jnp.sum(assignments, axis=(0, 1))
    sums = jnp.einsum('blnk,blnh->nkh', assignments, heads)
    batch_means = sums / (self.epsilon + counts[..., None])
    new_means = (1.0 - self.decay) * batch_means + self.decay * means
    self.update_var('means', new_means.astype(means.dtype))
    self._summarize_counts(counts)

  def _summarize(
    self, nearest: Num[Array, 'B L N'], means: Float[Array, 'N K H']
  ) -> None:
    self.add_summary(
      'k_means/centroid/cluster_ids',
      lambda: (nearest * 256.0 / self.num_clusters)[..., None],
      summary_type=base_layer.SummaryType.IMAGE,
    )
    norms = jnp.linalg.norm(means, axis=-1)
    for name, reduce in (('avg', jnp.mean), ('min', jnp.min), ('max', jnp.max)):
      self.add_summary(f'k_means/centroid/l2_norm_{name}', reduce(norms))

  def _summarize_counts(self, counts: Float[Array, 'N K']) -> None:
    """Writes summaries of the cluster sizes of each head."""
    self.add_summary('k_means/centroid/avg_cluster_count', jnp.mean(counts))
    for i in range(self.num_heads):
      is_active = counts[i] > 0
      proportions = counts[i] / jnp.maximum(jnp.sum(counts[i]), self.epsilon)
      logs = jnp.log(jnp.where(is_active, proportions, 1.0))
      mean_log = jnp.sum(logs) / jnp.maximum(1.0, jnp.sum(is_active))
      for name, value in (
        ('inactive_clusters_proportion', jnp.mean(~is_active)),
        ('max_cluster_proportion', jnp.max(proportions)),
        ('min_cluster_proportion', jnp.min(proportions)),
        ('geomean_cluster_proportion', jnp.exp(mean_log)),
      ):
        self.add_summary(f'k_means/centroid/{name}/head{i}', value)


def squared_distances(
  heads: Float[Array, '*B N H'], means: Float[Array, 'N K H']
) -> Float[Array, '*B N K']:
  """Returns the squared L2 distances of each head to its K centroids."""
  products = jnp.einsum('...nh,nkh->...nk', heads, means)
  heads_squared = jnp.sum(jnp.square(heads), axis=-1, keepdims=True)
  return heads_squared + jnp.sum(jnp.square(means), axis=-1) - 2 * products
