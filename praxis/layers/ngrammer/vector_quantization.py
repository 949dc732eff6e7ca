# SPDX-License-Identifier: Apache-2.0
"""Online k-means of every head."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from praxis import base_layer
from praxis.base_layer import WeightHParams


class VectorQuantization(base_layer.BaseLayer):
  """Distances to the centroids of clusters, which training steps move.

  References: Theory and experiments on vector quantized autoencoders,
  https://arxiv.org/abs/1805.11063; Efficient content-based sparse attention
  with routing transformers, https://arxiv.org/abs/2003.05997
  """

  # How many clusters each head has.
  num_clusters: int = 0
  # How many heads there are, and the size of one.
  num_heads: int = 0
  dim_per_head: int = 0
  # How much of a centroid a step keeps.
  decay: float = 0.999
  # Added to the number of members of a cluster.
  epsilon: float = 1e-6
  # Whether inputs are scaled to length 1 first, which evens out the clusters.
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
      inputs: with heads merged or apart.
      paddings: 1 for what belongs to no cluster; its nearest centroid is 0.
      summarize_and_update: whether to report, and move centroids in training.
    """
    means = self.centroids()
    heads = self.split(inputs)
    distances = squared_distances(heads, means)
    nearest = jnp.argmin(distances, axis=-1)
    members = jax.nn.one_hot(nearest, self.num_clusters, dtype=means.dtype)
    if paddings is not None:
      members *= 1 - paddings[:, :, None, None].astype(members.dtype)
    if summarize_and_update:
      self._summarize(nearest, means)
      if not self.do_eval:
        self._update(members, heads, means)
    return distances, jnp.einsum('blnk,nkh->blnh', members, means)

  def split(self, inputs: Float[Array, 'B L *D']) -> Float[Array, 'B L N H']:
    """Returns what is compared with the centroids, by head."""
    heads = self._cast_to_fprop_dtype(inputs).reshape(
      *inputs.shape[:2], self.num_heads, self.dim_per_head
    )
    if not self.prenormalize:
      return heads
    norms = jnp.linalg.norm(heads, axis=-1, keepdims=True)
    return heads / jnp.where(norms > 0, norms, 1.0)

  def _update(
    self,
    members: Float[Array, 'B L N K'],
    heads: Float[Array, 'B L N H'],
    means: Float[Array, 'N K H'],
  ) -> None:
    """Moves each centroid towards the mean of its members, or towards 0."""
    counts = jnp.sum(members, axis=(0, 1))
    sums = jnp.einsum('blnk,blnh->nkh', members, heads)
    batch_means = sums / (self.epsilon + counts[..., None])
    moved = (1.0 - self.decay) * batch_means + self.decay * means
    self.update_var('means', moved.astype(means.dtype))
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
    """Reports how evenly inputs spread over the clusters of each head."""
    self.add_summary('k_means/centroid/avg_cluster_count', jnp.mean(counts))
    for i in range(self.num_heads):
      used = counts[i] > 0
      parts = counts[i] / jnp.maximum(jnp.sum(counts[i]), self.epsilon)
      logs = jnp.log(jnp.where(used, parts, 1.0))
      mean_log = jnp.sum(logs) / jnp.maximum(1.0, jnp.sum(used))
      for name, value in (
        ('inactive_clusters_proportion', jnp.mean(~used)),
        ('max_cluster_proportion', jnp.max(parts)),
        ('min_cluster_proportion', jnp.min(parts)),
        ('geomean_cluster_proportion', jnp.exp(mean_log)),
      ):
        self.add_summary(f'k_means/centroid/{name}/head{i}', value)


def squared_distances(
  heads: Float[Array, '*B N H'], means: Float[Array, 'N K H']
) -> Float[Array, '*B N K']:
  """Returns the squared distance of each head to each of its centroids."""
  products = jnp.einsum('...nh,nkh->...nk', heads, means)
  heads_squared = jnp.sum(jnp.square(heads), axis=-1, keepdims=True)
  return heads_squared + jnp.sum(jnp.square(means), axis=-1) - 2 * products
