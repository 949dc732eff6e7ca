# SPDX-License-Identifier: Apache-2.0
"""Vector quantization with learned and random codebooks."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from praxis import base_layer, pax_fiddle, py_utils, pytypes
from praxis.alias_names import module_getattr
from praxis.base_layer import (
  WeightHParams,
  WeightHParamsCollection,
  WeightInit,
)
from praxis.layers import linears, quantizer_objectives
from praxis.nested_map import NestedMap

__getattr__ = module_getattr(__name__)


def quantize_vector(
  latent: Float[Array, '*B G H'], codebook: Float[Array, 'V G H']
) -> tuple[Float[Array, '*B G H'], Int[Array, '*B G'], Float[Array, '*B G V']]:
  """Returns the nearest codebook vectors, their codes, and one-hot codes.

  Args:
    latent: G groups of vectors of size H.
    codebook: V vectors for each group.
  """
  latent = latent.astype(jnp.float32)
  book = codebook.astype(jnp.float32)
  # |z - e|² = |z|² - 2 z·e + |e|²
  products = jnp.einsum('...gh,vgh->...gv', latent, book)
  squared_norms = jnp.sum(jnp.square(book), -1).T
  distances = jnp.sum(jnp.square(latent), -1, keepdims=True)
  distances = distances - 2 * products + squared_norms
  codes = jnp.argmin(distances, axis=-1)
  one_hot = jax.nn.one_hot(codes, len(book), dtype=jnp.float32)
  return jnp.einsum('...gv,vgh->...gh', one_hot, book), codes, one_hot


class _Quantizer(base_layer.BaseLayer):
  """Base of quantizers; subclasses define the codebook."""

  # Number of classes, the vectors of a codebook.
  num_latent_classes: int | None = None
  # Size of the input.
  latent_dim: int | None = None
  # Number of groups a vector is split into; each has its own codebook.
  num_groups: int = 1
  # Whether input and codebook are L2-normalized; the input by group, or as a
  # whole.
  normalize_latent_vector: bool = False
  normalize_codebook: bool = False
  normalize_latent_per_group: bool = True

  def _check(self, name: str, width: int) -> None:
    """Raises ValueError for unset or indivisible sizes.

    Args:
      name: the field with the size that is split into groups.
      width: that size.
    """
    for field in ('num_latent_classes', 'latent_dim'):
      self._size(field)
    if self.num_groups < 1 or width % self.num_groups:
      raise ValueError(
        f'num_groups must divide {name} {width}, got {self.num_groups}'
      )

  def _size(self, field: str) -> int:
    """Returns a field that must be set."""
    size = getattr(self, field)
    if not size:
      raise ValueError(
        f'{type(self).__name__} {self.name!r} needs {field} > 0, got {size}'
      )
    return size

  @property
  def _num_classes(self) -> int:
    return self._size('num_latent_classes')

  def look_up(self, z_codes: Int[Array, 'B T G']) -> Float[Array, 'B T D']:
    """Returns the codebook vectors of the codes."""
    one_hot = jax.nn.one_hot(z_codes, self._num_classes)
    vectors = jnp.einsum('btgv,vgh->btgh', one_hot, self._codebook())
    return vectors.reshape(*z_codes.shape[:2], -1)

  def _codebook(self) -> Float[Array, 'V G H']:
    raise NotImplementedError(f'{type(self).__name__} defines no _codebook')

  def _maybe_normalize(
    self, book: Float[Array, 'V G H']
  ) -> Float[Array, 'V G H']:
    return py_utils.l2_normalize(book) if self.normalize_codebook else book

  def _split_groups(self, z: Float[Array, 'B T D']) -> Float[Array, 'B T G H']:
    """Returns the groups of the vectors, normalized as configured."""
    normalize, per_group = (
      self.normalize_latent_vector,
      self.normalize_latent_per_group,
    )
    if normalize and not per_group:
      z = py_utils.l2_normalize(z)
    groups = z.reshape(*z.shape[:2], self.num_groups, -1)
    return py_utils.l2_normalize(groups) if normalize and per_group else groups

  def _codebook_usage(
    self, codes: Num[Array, 'B T G'], paddings: Num[Array, 'B T']
  ) -> dict[str, Float[Array, '']]:
    """Returns codebook_coverage, pplx and entropy over all replicas."""
    settings: dict[str, Any] = {'paddings': paddings}
    if base_layer.is_running_under_pmap():
      settings['data_parallel_axis'] = base_layer.PMAP_PARALLEL_AXIS_NAME
    pplx, entropy, histogram = (
      quantizer_objectives.batch_pplx_entropy_from_codes(
        codes, self._num_classes, **settings
      )
    )
    coverage = jnp.mean(histogram > 0, dtype=jnp.float32)
    return {'codebook_coverage': coverage, 'pplx': pplx, 'entropy': entropy}


class RandomVectorQuantizer(_Quantizer):
  """A frozen random projection quantized by a frozen random codebook.

  References: BEST-RQ, https://arxiv.org/abs/2202.01855
  """

  # Size of the projection.
  projection_dim: int = 16
  # Number of frames that are stacked before the projection.
  stack_ratio: int = 1
  # The initializer of the codebook.
  codebook_init: WeightInit = dataclasses.field(
    default_factory=WeightInit.Gaussian
  )
  # Whether the codebook of a single group has shape [V, H], for compatibility
  # with old checkpoints.
  low_rank_codebook: bool = False
  # Whether to write the codebook as an image summary.
  plot_codebook: bool = False

  class WeightSharding(base_layer.WeightSharding):
    # The codebook: classes, groups, size of a group.
    vgh: pytypes.SplitDimsMapping = None

  class ActivationSharding(base_layer.ActivationSharding):
    # The groups of the projection.
    blgh: pytypes.SplitDimsMapping = None

  def setup(self) -> None:
    self._check('projection_dim', self.projection_dim)
    if self.stack_ratio < 1:
      raise ValueError(f'stack_ratio must be positive, got {self.stack_ratio}')
    if self.stack_ratio > 1:
      stack = pax_fiddle.Config(
        linears.StackingOverTime,
        right_context=self.stack_ratio - 1,
        stride=self.stack_ratio,
        padding_reduce_option='reduce_max',
      )
      self.create_child('stack', stack)
    width = self.projection_dim
    latent_dim = self._size('latent_dim')
    self._create('random_proj', [latent_dim * self.stack_ratio, width])
    self._create('random_bias', [width], init=WeightInit.Constant(0.0))
    shape = [self._num_classes, self.num_groups, width // self.num_groups]
    mapping = self.weight_split_dims_mapping.vgh
    if self._is_flat:
      shape.pop(1)
      mapping = mapping and [mapping[0], mapping[2]]
    self._create(
      'random_codebook',
      shape,
      init=self.codebook_init,
      mesh_shape=self.mesh_shape,
      tensor_split_dims_mapping=mapping,
    )

  def _create(self, name: str, shape: list[int], **fields: Any) -> None:
    skip = [WeightHParamsCollection.SKIP_LP_REGULARIZATION]
    weight = WeightHParams(
      shape=shape, dtype=jnp.float32, collections=skip, **fields
    )
    self.create_variable(name, weight)

  @property
  def _is_flat(self) -> bool:
    return self.low_rank_codebook and self.num_groups == 1

  def _codebook(self) -> Float[Array, 'V G H']:
    book = self.theta.random_codebook
    return self._maybe_normalize(book[:, None] if self._is_flat else book)

  def __call__(
    self, z: Float[Array, 'B T I'], paddings: Num[Array, 'B T']
  ) -> NestedMap:
    """Quantizes S = T / stack_ratio stacked frames, without gradients.

    Returns:
      z_q [B, S, D] (the vectors), z_codes [B, S, G], z_onehot [B, S, G, V],
      paddings [B, S], and the scalars codebook_coverage (the share of classes
      in use), codebook_num_covered_codes, pplx and entropy.
    """
    if self.stack_ratio > 1:
      z, paddings = self.stack(z, paddings[:, :, None])
      paddings = paddings[:, :, 0]
    projected = jnp.einsum('dh,bld->blh', self.theta.random_proj, z)
    groups = self._split_groups(projected + self.theta.random_bias)
    groups = self.shard(groups, self.activation_split_dims_mapping.blgh)
    book = self._codebook()
    if self.plot_codebook:
      image = jnp.tile(jnp.swapaxes(book, 0, 1)[..., None], [1, 1, 1, 3])
      self.add_summary('codebook', image, base_layer.SummaryType.IMAGE)
    vectors, codes, one_hot = quantize_vector(groups, book)
    usage = self._codebook_usage(codes, paddings)
    covered = usage['codebook_coverage'] * self._num_classes
    result = NestedMap(
      z_q=vectors.reshape(projected.shape),
      z_codes=codes,
      z_onehot=one_hot,
      paddings=paddings,
      codebook_num_covered_codes=covered,
      **usage,
    )
    return jax.tree.map(jax.lax.stop_gradient, result)

  def look_up(self, z_codes: Int[Array, 'B T G']) -> Float[Array, 'B T D']:
    """Returns the codebook vectors of the codes, without gradients."""
    return jax.lax.stop_gradient(super().look_up(z_codes))


class VectorQuantizer(_Quantizer):
  """The learned codebook of a VQ-VAE.

  References: Neural Discrete Representation Learning, equation 3,
  https://arxiv.org/abs/1711.00937
  """

  # The weight of the commitment loss.
  beta: float | None = None
  normalize_latent_vector: bool = True
  normalize_codebook: bool = True
  params_init: WeightInit = pax_fiddle.instance_field(WeightInit.UniformSqrtDim)

  def setup(self) -> None:
    self._check('latent_dim', self.latent_dim or 0)
    self._commitment_weight()
    width = self._size('latent_dim') // self.num_groups
    shape = [self._num_classes, self.num_groups, width]
    self.create_variable('w', WeightHParams(shape=shape, dtype=jnp.float32))

  def _commitment_weight(self) -> float:
    """Returns beta, which must be set."""
    if self.beta is None or self.beta < 0:
      raise ValueError(f'beta must be set, not negative, got {self.beta}')
    return self.beta

  def _codebook(self) -> Float[Array, 'V G H']:
    return self._maybe_normalize(self.theta.w)

  def __call__(
    self, z: Float[Array, 'B T D'], paddings: Num[Array, 'B T']
  ) -> NestedMap:
    """Quantizes vectors; those of padding, and their codes, are 0.

    Returns:
      z_q [B, T, D] (the vectors, with the straight-through gradient of z),
      z_onehot [B, T, G, V], z_codes [B, T, G], and the scalars loss,
      codebook_coverage (the share of classes in use),
      codebook_num_covered_words, pplx and entropy.
    """
    is_frame = 1.0 - paddings
    mask_padding = lambda x: (
      x * is_frame.reshape(is_frame.shape + (1,) * (x.ndim - 2)).astype(x.dtype)
    )
    z = mask_padding(z)
    if self.normalize_latent_vector and not self.normalize_latent_per_group:
      z = py_utils.l2_normalize(z)
    vectors, codes, one_hot = quantize_vector(
      self._split_groups(z), self._codebook()
    )
    vectors, codes, one_hot = (
      mask_padding(x) for x in (vectors.reshape(z.shape), codes, one_hot)
    )
    stop = jax.lax.stop_gradient
    num_frames = jnp.sum(is_frame.astype(jnp.float32)) + 1e-7
    mean_square = lambda a, b: (
      jnp.sum(jnp.mean(jnp.square(a - b), -1)) / num_frames
    )
    codebook_loss = mean_square(vectors, stop(z))
    commitment_loss = mean_square(z, stop(vectors))
    loss = codebook_loss + self._commitment_weight() * commitment_loss
    usage = self._codebook_usage(codes, paddings)
    num_words = self._num_classes**self.num_groups
    return NestedMap(
      z_q=z + stop(vectors - z),
      z_codes=codes,
      z_onehot=one_hot,
      loss=loss,
      codebook_num_covered_words=usage['codebook_coverage'] * num_words,
      **usage,
    )
