# SPDX-License-Identifier: Apache-2.0
# bazel: size=large
# bazel: tags=nightly
# bazel: deps=//pax/tasks:experiments
"""The attention kernels that all experiments choose on their machines.

The model is traced for its machine and mesh, without their devices.
"""

from __future__ import annotations

import contextlib

import jax
import pytest
from jax.sharding import AbstractMesh, AxisType

from pax import experiment_registry
from pax.tools import abstract_experiment
from praxis import py_utils
from praxis.layers.attentions import kernel_choice
from tests.praxis.layers.attentions import kernel_cases

experiment_registry.import_all_experiments()
_NAMES = sorted(experiment_registry.get_all())
# Experiments with einsum, and a reason.
_EINSUM = {
  'BertAdamL4H128': 'a head dimension of 16',
  'BertSpmdL4H128': 'a head dimension of 16',
  'LmCloudSpmdTest': 'a head dimension of 8',
  'T5': 'a mask that is an array',
  'T5V1_1': 'a mask that is an array',
  'GLaM64B64EProxy': 'relative_bias_tpl',
  'GLaM64B64EProxy_EP': 'relative_bias_tpl',
  'NVIDIA_CIRCULAR_REPEAT': 'float32',
  'Grok_PP': 'over a batch of 16',
  'Grok_Proxy_PP': 'over a batch of 16',
}
_WITHOUT_ATTENTION = {'LargeMlp', 'SmallMlp'}
_GPU_PACKAGES = {'gpu', 'nvidia'}
# Simulated devices, which some experiments share a row of a batch among.
_NUM_DEVICES = 4
# Layers of experiments without pipelines; all are alike. Some experiments have
# as many heads, which their meshes divide by four.
_FEW_LAYERS = ('NUM_LAYERS=4',)


def _declare(name):
  """Returns an experiment of few layers, with the batch of few devices."""
  cls = experiment_registry.get(name)
  is_pipeline = getattr(cls, 'NUM_STAGES', None) is not None
  changes = (
    _FEW_LAYERS if hasattr(cls, 'NUM_LAYERS') and not is_pipeline else ()
  )
  options = abstract_experiment.ExperimentOptions(exp=name, set=changes)
  try:
    return abstract_experiment.declare(options, lambda *_: _NUM_DEVICES)
  except ValueError:
    # Some experiments check their number of layers.
    options = abstract_experiment.ExperimentOptions(exp=name)
    return abstract_experiment.declare(options, lambda *_: _NUM_DEVICES)


def _use_mesh(model):
  """Enters the mesh of a model, without devices."""
  if model.ici_mesh_shape is None:
    return contextlib.nullcontext()
  ici = model.ici_mesh_shape
  dcn = model.dcn_mesh_shape or [1] * len(ici)
  shape = tuple(a * b for a, b in zip(ici, dcn, strict=True))
  types = (AxisType.Auto,) * len(shape)
  return jax.sharding.use_abstract_mesh(
    AbstractMesh(shape, tuple(model.mesh_axis_names), axis_types=types)
  )


def _global_batch(experiment):
  """Returns the shapes of a batch that the mesh divides."""
  num_devices = abstract_experiment.num_devices(experiment.task)
  factor = max(1, num_devices // _NUM_DEVICES)
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(
      (factor * x.shape[0], *x.shape[1:]), x.dtype
    ),
    experiment.input_spec(),
  )


@pytest.mark.parametrize('name', _NAMES)
def test_choices(name, monkeypatch):
  kernel_cases.assume_cuda_plugin(monkeypatch)
  choices = []
  monkeypatch.setattr(
    kernel_choice, '_log_choice', lambda _, *choice: choices.append(choice)
  )
  experiment = _declare(name)
  cls, model = type(experiment.experiment), experiment.task.model
  is_gpu = bool(_GPU_PACKAGES & set(cls.__module__.split('.')))
  with py_utils.tracing_for('gpu' if is_gpu else 'tpu'), _use_mesh(model):
    layer = model.clone().Instantiate()
    layer.abstract_init_with_metadata(_global_batch(experiment))
  if '.lm.' in cls.__module__:
    assert bool(choices) == (cls.__name__ not in _WITHOUT_ATTENTION)
  for choice, reasons in choices:
    if reason := _EINSUM.get(cls.__name__):
      assert choice == 'einsum' and reason in ' '.join(reasons)
    elif is_gpu and cls.PACKED_INPUT:
      assert (choice, reasons) == ('triton', {'packed rows': ['cudnn']})
    else:
      assert choice == ('cudnn' if is_gpu else 'splash')
