# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""First values follow the declarations, the key and the paths, nothing else."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from pax import train_states
from pax.partitioning import initialize, mesh
from praxis import base_layer
from tests.pax import tiny

WeightInit = base_layer.WeightInit
_COMPILE_FAST = {'xla_backend_optimization_level': 0}
# The emitters that tests use by day round the last bit differently without.
_OPTIMIZE = {'xla_backend_optimization_level': 3}


def _weight(*shape, init, **kwargs):
  return base_layer.WeightHParams(
    shape=shape, init=init, dtype=np.float32, **kwargs
  )


def _compile(declared, num_devices=1):
  """Returns a compiled function from seeds to first values."""
  devices = mesh.create_replica_mesh('x', jax.devices()[:num_devices])
  split = jax.tree.map(
    lambda weight: NamedSharding(
      devices, PartitionSpec('x' if weight.full_shape[0] % 4 == 0 else None)
    ),
    declared,
  )
  init = lambda key: initialize._init_declared(declared, split, key, {})
  compiled = jax.jit(init, out_shardings=split, compiler_options=_OPTIMIZE)

  def run(seed):
    with jax.set_mesh(devices):
      return compiled(jax.random.key(seed))

  return run


@pytest.fixture(scope='module')
def declared():
  return {
    'a': _weight(64, 64, init=WeightInit.Gaussian(0.5)),
    'b': _weight(64, 64, init=WeightInit.Gaussian(0.5)),
    'bias': _weight(8, init=WeightInit.Constant(0.25)),
    'stack': _weight(
      64, 64, init=WeightInit.Uniform(2.0), repeat_prefix=[2, 3]
    ),
  }


@pytest.fixture(scope='module')
def init(declared):
  return _compile(declared)


@pytest.fixture(scope='module')
def made(init):
  return init(0)


def test_distributions(made):
  np.testing.assert_allclose(made['a'].std(), 0.5, rtol=0.05)
  np.testing.assert_array_equal(made['bias'], np.full(8, 0.25, np.float32))
  assert made['stack'].shape == (2, 3, 64, 64)
  np.testing.assert_allclose(np.abs(made['stack']).max(), 2.0, rtol=0.01)


def test_variables_declared_alike_and_copies_differ(made):
  copies = [made['a'], made['b'], *made['stack'].reshape(6, 64, 64)]
  for i, one in enumerate(copies):
    for other in copies[i + 1 :]:
      assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.1


def test_other_variables_and_devices_change_nothing(declared, init, made):
  some = {name: declared[name] for name in ('b', 'stack')}
  split = _compile(some, num_devices=4)(0)
  assert len(split['b'].sharding.device_set) == 4
  for name in some:
    np.testing.assert_array_equal(split[name], made[name])
  assert (np.asarray(init(1)['a']) != made['a']).any()


def test_undeclared_initializers_are_asked_of_the_model():
  task = tiny.task().Instantiate()
  batch = tiny.spec(tiny.batch())
  declared = task.model.abstract_init_with_metadata(batch)
  devices = mesh.create_replica_mesh('x', jax.devices()[:1])
  place = NamedSharding(devices, PartitionSpec())
  shape_of = lambda shape, dtype: jax.ShapeDtypeStruct(
    shape, dtype, sharding=place
  )
  metadata = train_states.TrainState(
    step=shape_of((), np.uint32),
    mdl_vars=jax.tree.map(lambda x: shape_of(x.shape, x.dtype), declared),
    opt_states=[],
  )
  initializer = initialize.StateInitializer(
    task=task,
    var_weight_hparams=declared,
    metadata=metadata,
    batch=batch,
    compiler_options=_COMPILE_FAST,
  )
  key = jax.random.key(0)
  init = lambda: initializer.state(key, {}).mdl_vars['params']
  before = init()
  declared['params']['second']['w'].init = None
  got = init()
  zeros = jax.tree.map(lambda x: jax.numpy.zeros(x.shape, x.dtype), batch)
  wanted = jax.jit(
    lambda key: task.model.init(key, zeros), compiler_options=_COMPILE_FAST
  )(key)['params']
  np.testing.assert_array_equal(got['second']['w'], wanted['second']['w'])
  assert (got['second']['w'] != before['second']['w']).any()
  # The others keep the values that they were declared to have.
  jax.tree.map(np.testing.assert_array_equal, got['first'], before['first'])


def test_small_states_on_a_cpu_are_compiled_quickly():
  options = initialize.compiler_options(jax.devices(), 1000)
  assert options == {'xla_backend_optimization_level': 0}
  assert not initialize.compiler_options(jax.devices(), 10**12)
