# SPDX-License-Identifier: Apache-2.0
"""Adapters: small layers that make a trained model fit another task."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from praxis import base_layer, pax_fiddle
from praxis.base_layer import WeightHParams, WeightInit
from praxis.layers import activations, normalizations, transformers

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
template_field = pax_fiddle.template_field


class MultitaskResidualAdapter(base_layer.BaseLayer):
  """Norm, a bottleneck of two linear layers, residual; weights by task.

  It starts as the identity but for its last bias.

  References: Parameter-Efficient Transfer Learning for NLP,
  https://arxiv.org/abs/1902.00751
  """

  # Sizes of the input and output, and between the linear layers.
  input_dims: int = 0
  bottleneck_dims: int = 0
  # How many tasks there are, each with weights of its own.
  num_tasks: int = 1
  # The norm, of all tasks; None for none.
  norm_tpl: LayerTpl | None = template_field(normalizations.LayerNorm)
  # The activation between the linear layers.
  activation_tpl: pax_fiddle.Config[activations.BaseActivation] = (
    template_field(activations.ReLU)
  )

  def setup(self) -> None:
    tasks, wide, narrow = self.num_tasks, self.input_dims, self.bottleneck_dims
    if min(tasks, wide, narrow) <= 0:
      raise ValueError(
        f'MultitaskResidualAdapter {self.name!r} needs num_tasks, input_dims '
        f'and bottleneck_dims > 0, got {tasks}, {wide} and {narrow}'
      )
    if self.norm_tpl is not None:
      self.create_child('norm', self._norm())
    self._create('down_w', [tasks, wide, narrow])
    self._create('down_b', [tasks, narrow])
    self._create('up_w', [tasks, narrow, wide], WeightInit.Constant(0.0))
    self._create('up_b', [tasks, wide])
    self.create_child('activation', self.activation_tpl.clone())

  def __call__(
    self,
    inputs: Float[Array, 'B *T D'],
    paddings: Num[Array, 'B *T'] | None = None,
    tasks: Int[Array, '...'] | None = None,
    add_residual: bool = True,
  ) -> Float[Array, 'B *T D']:
    """Returns the adapted inputs.

    Args:
      inputs: what to adapt.
      paddings: 1 for padding, for norms that ask.
      tasks: the task of each position, or of each row of positions; may be
        absent where there is one task.
      add_residual: whether the inputs are added.
    """
    task = self._one_hot(tasks, inputs)
    pick = lambda name: jnp.einsum(
      '...k,kn->...n', task, getattr(self.theta, name)
    )
    hidden = inputs if self.norm_tpl is None else self.norm(inputs, paddings)
    hidden = self._project(hidden, task, self.theta.down_w) + pick('down_b')
    hidden = self.activation(hidden)
    outputs = self._project(hidden, task, self.theta.up_w) + pick('up_b')
    return inputs + outputs if add_residual else outputs

  def _project(
    self,
    x: Float[Array, 'B *T I'],
    task: Float[Array, '#B *#T K'],
    weight: Float[Array, 'K I O'],
  ) -> Float[Array, 'B *T O']:
    """Returns the product with the weights of each position's task."""
    return jnp.einsum('...i,...k,kio->...o', x, task, weight)

  def _one_hot(
    self, tasks: Int[Array, '...'] | None, inputs: Float[Array, 'B *T D']
  ) -> Float[Array, '...']:
    """Returns the tasks one-hot, with as many dimensions as the inputs."""
    if tasks is None:
      if self.num_tasks != 1:
        raise ValueError(
          f'MultitaskResidualAdapter {self.name!r} has num_tasks='
          f'{self.num_tasks}: tasks must say which each input is of, got None'
        )
      tasks = jnp.zeros(inputs.shape[:-1], jnp.int32)
    rank = tasks.ndim
    missing = inputs.ndim - 1 - rank
    if missing not in (0, 1) or tasks.shape != inputs.shape[:rank]:
      raise ValueError(
        f'tasks must have the shape of inputs, {inputs.shape}, without the '
        f'last dimension or the last two, got {tasks.shape}'
      )
    one_hot = jax.nn.one_hot(tasks, self.num_tasks, dtype=inputs.dtype)
    return jnp.expand_dims(one_hot, -2) if missing else one_hot

  def _norm(self) -> LayerTpl:
    kind = self.norm_tpl.cls
    is_norm = isinstance(kind, type) and issubclass(
      kind, normalizations.BaseNormalization
    )
    if not is_norm:
      raise ValueError(
        f'norm_tpl of MultitaskResidualAdapter {self.name!r} must be of a '
        f'BaseNormalization or None, got {kind}'
      )
    return self.norm_tpl.clone().set(dim=self.input_dims)

  def _create(
    self, name: str, shape: list[int], init: WeightInit | None = None
  ) -> None:
    hparams = WeightHParams(shape=shape, init=init, mesh_shape=self.mesh_shape)
    self.create_variable(name, hparams)


class AdaptedTransformerFeedForward(transformers.TransformerFeedForward):
  """A feed-forward block with an adapter before its residual connection.

  References: Towards a Unified View of Parameter-Efficient Transfer Learning,
  https://openreview.net/pdf?id=0RDcd5Axok
  """

  # The adapter, best without norm of its own.
  adapter_tpl: LayerTpl | None = template_field(None)
  # What the adapter sees: 'sequential', what the block gives, or 'parallel',
  # the block's input.
  mode: str = 'sequential'

  def setup(self) -> None:
    if self.mode not in ('sequential', 'parallel'):
      raise ValueError(
        f"mode must be 'sequential' or 'parallel', got {self.mode!r}"
      )
    if self.adapter_tpl is None or self.residual_droppath_prob:
      raise ValueError(
        f'AdaptedTransformerFeedForward {self.name!r} needs adapter_tpl, and '
        f'residual_droppath_prob=0, got {self.residual_droppath_prob}'
      )
    super().setup()
    self.create_child('adapters', self.adapter_tpl.clone())

  def __call__(
    self,
    inputs: Float[Array, '*B D'],
    paddings: Num[Array, '*B'] | None = None,
    segment_ids: Int[Array, '*B'] | None = None,
    tasks: Int[Array, '...'] | None = None,
  ) -> Float[Array, '*B Do']:
    """Returns the block's output; `tasks` are the adapter's."""
    inputs, branch = self._residual_branch(inputs, paddings, segment_ids)
    seen = branch if self.mode == 'sequential' else inputs
    branch += self.adapters(seen, paddings, tasks, add_residual=False)
    return self._add_residual(inputs, branch, paddings)
