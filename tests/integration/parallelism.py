# SPDX-License-Identifier: Apache-2.0
"""A tiny language model, trained one step on any mesh in any parallel way."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import numpy as np

from pax import learners, partitioning
from pax.tasks.lm import model_params
from praxis import base_layer, optimizers, pax_fiddle, py_utils, schedules
from praxis.layers import transformer_models, transformers
from praxis.pytypes import NestedMap

Config = pax_fiddle.Config

LAYERS, ROWS, LENGTH, VOCAB = 4, 16, 16, 96
# A power of two, so that what one step of SGD changes is the gradient. It is
# large beside the weights, so that the difference keeps its digits.
_LEARNING_RATE = 2.0**12
_KEY = jax.random.key(0)
# What scans and pipelines put in front of a layer's own path.
_STACKING = ('repeat', 'sub', 'pipeline', 'body')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
  """A way to spread the model; sizes of axes are 1 where not given."""

  replica: int = 1
  data: int = 1
  mdl: int = 1
  # Splits experts, of which every layer has eight; None: it has none.
  expert: int | None = None
  # Splits the length of sequences; None: there is no such axis.
  seq: int | None = None
  # Constants of an experiment: those that say how it is spread, and those that
  # say what it computes.
  more: tuple[tuple[str, Any], ...] = ()
  model: tuple[tuple[str, Any], ...] = ()
  # The experiment that the model is made from, its sizes apart; None: one that
  # is as plain as can be.
  family: type | None = None
  # Stages of a pipeline; None: no pipeline.
  stages: int | None = None
  # Two slices, which share the work of axis `replica`.
  slices: int = 1
  # Whether one replica of the whole model runs on each of eight devices.
  pmap: bool = False

  @property
  def num_devices(self) -> int:
    """How many devices the mesh has."""
    if self.pmap:
      return 8
    sizes = self.replica, self.data, self.mdl, self.expert, self.seq
    return math.prod(n or 1 for n in (*sizes, self.stages, self.slices))


class Stepped(NamedTuple):
  """What one training step computed, and the program that did."""

  loss: float
  # By the path of the variable; layers are stacked, [4, ...].
  gradients: dict[str, np.ndarray]
  text: str
  partitioner: partitioning.Partitioner


class _Sizes:
  NUM_LAYERS = LAYERS
  VOCAB_SIZE = VOCAB
  MODEL_DIMS = 32
  HIDDEN_DIMS = 64
  NUM_HEADS = 8
  DIMS_PER_HEAD = None
  FPROP_DTYPE = np.float32
  USE_REPEATED_LAYER = True
  NUM_EXPERTS = 0
  GATING_FUNC = 'top2'
  BALANCES_EACH_SEQUENCE = False
  NUM_MICROBATCHES = None
  NUM_MTP_MODULES = 0

  def datasets(self) -> list[Any]:
    return []

  def _set_embeddings(self, lm_p: Config) -> None:
    super()._set_embeddings(lm_p)
    if self.NUM_MTP_MODULES:
      lm_p.mtp_tpl = Config(
        transformer_models.MultiTokenPrediction,
        num_modules=self.NUM_MTP_MODULES,
      )

  def _transformer_stack(
    self, num_layers: int
  ) -> Config[transformers.StackedTransformer]:
    stack_p = super()._transformer_stack(num_layers)
    if self.NUM_EXPERTS:
      # A group is a row, of which a stage sees a microbatch.
      groups = ROWS // (self.NUM_MICROBATCHES or 1)
      stack_p.set(
        num_experts=self.NUM_EXPERTS,
        moe_layers=[0],
        num_groups=groups,
        gating_func=self.GATING_FUNC,
      )
      moe_p = stack_p.moe_layer_tpl
      moe_p.balances_each_sequence = self.BALANCES_EACH_SEQUENCE
    return stack_p


class _Lm(_Sizes, model_params.TransformerLmSpmdAdafactor):
  """Layers repeated by a scan."""


class _PipelinedLm(_Sizes, model_params.TransformerLmSpmdPipelineAdafactor):
  """Layers that are stages."""

  NUM_MICROBATCHES = 4


def prepare(case: Case) -> tuple[partitioning.Partitioner, Any, NestedMap]:
  """Returns the partitioner, and a state and a batch on the host."""
  batch = _batch()
  made = partitioning.partition_task(
    _task(case),
    jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch),
    devices=jax.devices()[: case.num_devices],
  )
  return made, _state(made.state_metadata), batch


def put_state(made: partitioning.Partitioner, state: Any) -> Any:
  """Returns a state of the host on the devices."""
  return jax.device_put(state, _shardings(made.state_metadata))


def step(case: Case) -> Stepped:
  """Returns what a training step does to variables that all cases share."""
  made, state, batch = prepare(case)
  state = put_state(made, state)
  before = _layers_stacked(state.mdl_vars)
  compiled = made.train_step().lower(_KEY).compile(_QUICKLY)
  replicated = jax.sharding.NamedSharding(
    made.mesh, jax.sharding.PartitionSpec()
  )
  state, output = compiled(
    state, made.put_batch(batch), jax.device_put(_KEY, replicated)
  )
  after = _layers_stacked(state.mdl_vars)
  gradients = {
    path: (before[path] - after[path]) / _LEARNING_RATE for path in before
  }
  return Stepped(float(output.loss), gradients, compiled.as_text(), made)


@functools.cache
def alone(case: Case) -> Stepped:
  """Returns what one device computes of a case's model."""
  expert = None if case.expert is None else 1
  return step(Case(expert=expert, model=case.model, family=case.family))


@functools.cache
def check(case: Case) -> Stepped:
  """Asserts that a case computes what one device does; returns the step."""
  got = step(case)
  want = alone(Case(expert=case.expert, model=case.model, family=case.family))
  np.testing.assert_allclose(got.loss, want.loss, rtol=1e-5)
  assert got.gradients.keys() == want.gradients.keys()
  sizes = {path: np.max(np.abs(g)) for path, g in want.gradients.items()}
  for path, gradient in want.gradients.items():
    # Some are 0 but for rounding, as those of keys' biases are.
    size = max(sizes[path], max(sizes.values()) / 1000)
    np.testing.assert_allclose(
      got.gradients[path], gradient, rtol=0, atol=1e-5 * size, err_msg=path
    )
  return got


# A program runs once here.
_QUICKLY = {'xla_backend_optimization_level': 0}


def _task(case: Case) -> Config:
  constants = dict((*case.model, *case.more))
  constants['NUM_EXPERTS'] = 0 if case.expert is None else 8
  base = _Lm if case.stages is None else _PipelinedLm
  if case.family is not None:
    base = type('Family', (_Sizes, case.family), {})
  front = () if case.stages is None else (case.stages,)
  inner = (
    *(() if case.expert is None else (case.expert,)),
    *(() if case.seq is None else (case.seq,)),
  )
  mesh = [*front, case.replica, case.data, *inner, case.mdl]
  if not case.pmap:
    constants['ICI_MESH_SHAPE'] = mesh
    slices = [1] * len(mesh)
    slices[len(front)] = case.slices
    constants['DCN_MESH_SHAPE'] = slices
    constants['USE_EXPERT_PARALLEL'] = case.expert is not None
  if case.stages is not None:
    constants['NUM_STAGES'] = case.stages
    repeats = constants.get('CIRCULAR_REPEAT', 1)
    constants['USE_REPEATED_LAYER'] = case.stages * repeats < LAYERS
  task_p = type('Case', (base,), constants)().task()
  task_p.train.learner = Config(
    learners.Learner,
    loss_name='total_loss',
    optimizer=Config(
      optimizers.Sgd,
      learning_rate=_LEARNING_RATE,
      lr_schedule=Config(schedules.Constant),
    ),
  )
  return task_p


def _batch() -> NestedMap:
  """Returns rows of two texts each, and some padding."""
  random = np.random.default_rng(3)
  ids = random.integers(1, VOCAB, (ROWS, LENGTH + 1)).astype(np.int32)
  first = random.integers(4, 8, (ROWS, 1))
  end = random.integers(10, LENGTH + 1, (ROWS, 1))
  place = np.arange(LENGTH)[np.newaxis]
  padded = place >= end
  second = place >= first
  return NestedMap(
    ids=ids[:, :-1],
    labels=ids[:, 1:],
    weights=np.where(padded, 0.0, 1.0).astype(np.float32),
    paddings=padded.astype(np.float32),
    segment_ids=np.where(padded, 0, 1 + second).astype(np.int32),
    segment_pos=np.where(second, place - first, place).astype(np.int32),
  )


def _state(metadata: Any) -> Any:
  """Returns a state on the host: variables by name, all else zeros."""
  zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), metadata)
  drawn = [
    _value(_own_path(path), leaf.shape)
    for path, leaf in py_utils.tree_paths(metadata.mdl_vars)
  ]
  structure = jax.tree.structure(metadata.mdl_vars)
  return zeros.replace(mdl_vars=jax.tree.unflatten(structure, drawn))


def _value(path: str, shape: tuple[int, ...]) -> np.ndarray:
  """Returns numbers that depend on path and size, not on how layers stack."""
  seed = sum(ord(letter) * (i + 1) for i, letter in enumerate(path))
  numbers = np.random.default_rng(seed).normal(size=math.prod(shape))
  return (0.2 * numbers).astype(np.float32).reshape(shape)


def _layers_stacked(mdl_vars: Any) -> dict[str, np.ndarray]:
  stacked = {}
  for path, value in py_utils.tree_paths(mdl_vars[base_layer.PARAMS]):
    value = np.asarray(value)
    is_stacked = '/x_layers_' in path
    own = _own_path(path)
    stacked[own] = (
      value.reshape(LAYERS, -1) if is_stacked else value.reshape(1, -1)
    )
  return stacked


def _own_path(path: str) -> str:
  parts = [part for part in path.split('/') if part not in _STACKING]
  return '/'.join(part for part in parts if part != base_layer.PARAMS)


def _shardings(metadata: Any) -> Any:
  return jax.tree.map(lambda x: x.sharding, metadata)
