# SPDX-License-Identifier: Apache-2.0
"""Adapters: small layers that fine-tune a model (arXiv:1902.00751)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from praxis import base_layer, pax_fiddle
from praxis.alias_names import module_getattr
from praxis.base_layer import WeightHParams, WeightInit
from praxis.layers import activations, normalizations, transformers

__getattr__ = module_getattr(__name__)
weight_init = base_layer.WeightInit

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
template_field = pax_fiddle.template_field


class MultitaskResidualAdapter(base_layer.BaseLayer):
  """Norm, a bottleneck of two linear layers, residual; weights per task.

  At initialization it adds only the last bias to its input.

  References: Parameter-Efficient Transfer Learning for NLP,
  https://arxiv.org/abs/1902.00751
  """

  # Dimension of input and output, and of the bottleneck.
  input_dims: int = 0
  bottleneck_dims: int = 0
  # Number of tasks, each with separate weights.
  num_tasks: int = 1
  # The norm, shared by all tasks; None for no norm.
  norm_tpl: LayerTpl | None = template_field(normalizations.LayerNorm)
  # Activation of the bottleneck.
  activation_tpl: pax_fiddle.Config[activations.BaseActivation] = (
    template_field(activations.ReLU)
  )

  def setup(self) -> None:
    num_tasks, model = self.num_tasks, self.input_dims
    bottleneck = self.bottleneck_dims
    if min(num_tasks, model, bottleneck) <= 0:
      raise ValueError(
        f'MultitaskResidualAdapter {self.name!r} needs num_tasks, input_dims '
        f'and bottleneck_dims > 0, got {num_tasks}, {model} and {bottleneck}'
      )
    if self.norm_tpl is not None:
      self.create_child('norm', self._configured_norm(self.norm_tpl))
    zeros = WeightInit.Constant(0.0)
    self._create_weight('down_w', [num_tasks, model, bottleneck])
    self._create_weight('down_b', [num_tasks, bottleneck])
    self._create_weight('up_w', [num_tasks, bottleneck, model], zeros)
    self._create_weight('up_b', [num_tasks, model])
    self.create_child('activation', self.activation_tpl.clone())

  def __call__(
    self,
    inputs: Float[Array, 'B *T D'],
    paddings: Num[Array, ' B *T'] | None = None,
    tasks: Int[Array, '...'] | None = None,
    add_residual: bool = True,
  ) -> Float[Array, 'B *T D']:
    """Returns the adapted inputs.

    Args:
      inputs: to adapt.
      paddings: 1 for padding, for norms that use it.
      tasks: task index of each position, or of each row of positions; optional
        with a single task.
      add_residual: whether to add the inputs.
    """
    task = self._one_hot_tasks(tasks, inputs)
    theta = self.theta
    hidden = inputs if self.norm_tpl is None else self.norm(inputs, paddings)
    hidden = self.activation(
      self._project(hidden, task, theta.down_w, theta.down_b)
    )
    outputs = self._project(hidden, task, theta.up_w, theta.up_b)
    return inputs + outputs if add_residual else outputs

  def _project(
    self,
    x: Float[Array, 'B *T I'],
    task: Float[Array, '#B *#T K'],
    weight: Float[Array, 'K I O'],
    bias: Float[Array, 'K O'],
  ) -> Float[Array, 'B *T O']:
    """Returns the linear layer of each position's task."""
    outputs = jnp.einsum('...i,...k,kio->...o', x, task, weight)
    return outputs + jnp.einsum('...k,kn->...n', task, bias)

  def _one_hot_tasks(
    self, tasks: Int[Array, '...'] | None, inputs: Float[Array, 'B *T D']
  ) -> Float[Array, '...']:
    """Returns one-hot tasks of the rank of the inputs."""
    if tasks is None:
      if self.num_tasks != 1:
        raise ValueError(
          f'MultitaskResidualAdapter {self.name!r} has num_tasks='
          f'{self.num_tasks}: tasks must be the task of each input, got None'
        )
      tasks = jnp.zeros(inputs.shape[:-1], jnp.int32)
    rank = tasks.ndim
    num_missing_dims = inputs.ndim - 1 - rank
    if num_missing_dims not in (0, 1) or tasks.shape != inputs.shape[:rank]:
      raise ValueError(
        f'tasks must have the shape of inputs, {inputs.shape}, without the '
        f'last dimension or the last two, got {tasks.shape}'
      )
    one_hot = jax.nn.one_hot(tasks, self.num_tasks, dtype=inputs.dtype)
    return jnp.expand_dims(one_hot, -2) if num_missing_dims else one_hot

  def _configured_norm(self, template: LayerTpl) -> LayerTpl:
    norm_cls = template.cls
    is_norm = isinstance(norm_cls, type) and issubclass(
      norm_cls, normalizations.BaseNormalization
    )
    if not is_norm:
      raise ValueError(
        f'norm_tpl of MultitaskResidualAdapter {self.name!r} must be of a '
        f'BaseNormalization or None, got {norm_cls}'
      )
    return template.clone().set(dim=self.input_dims)

  def _create_weight(
    self, name: str, shape: list[int], init: WeightInit | None = None
  ) -> None:
    hparams = WeightHParams(shape=shape, init=init, mesh_shape=self.mesh_shape)
    self.create_variable(name, hparams)


class AdaptedTransformerFeedForward(transformers.TransformerFeedForward):
  """A feed-forward layer with an adapter before the residual connection.

  References: Towards a Unified View of Parameter-Efficient Transfer Learning,
  https://openreview.net/pdf?id=0RDcd5Axok
  """

  # The adapter; use norm_tpl=None, as the layer normalizes.
  adapter_tpl: LayerTpl | None = template_field(None)
  # Input of the adapter: the output of the feed-forward layer ('sequential') or
  # its input ('parallel').
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
    """Returns the output of the layer.

    Args:
      inputs: of the layer.
      paddings: 1 for padding.
      segment_ids: segments of packed inputs.
      tasks: see MultitaskResidualAdapter.
    """
    inputs, branch = self._residual_branch(inputs, paddings, segment_ids)
    adapter_inputs = branch if self.mode == 'sequential' else inputs
    branch += self.adapters(adapter_inputs, paddings, tasks, add_residual=False)
    return self._add_residual(inputs, branch, paddings)
