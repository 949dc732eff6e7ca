# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""BaseLayer: weights, children, inheritance, variables, what it reports."""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer, pax_fiddle
from praxis.base_layer import JaxContext, WeightHParams, WeightInit

Flags = base_layer.WeightHParamsCollection


class Linear(base_layer.BaseLayer):
  class HParams(base_layer.BaseHParams):
    input_dims: int = 2
    output_dims: int = 3

  def setup(self):
    self.create_variable(
      'w',
      WeightHParams(
        shape=[self.input_dims, self.output_dims],
        mesh_shape=self.mesh_shape,
        tensor_split_dims_mapping=self.weight_split_dims_mapping.wt,
      ),
    )

  def fprop(self, x):
    return x @ self.theta.w


class Counter(base_layer.BaseLayer):
  def setup(self):
    zero = WeightHParams(shape=[], init=WeightInit.Constant(0.0))
    self.create_variable('n', zero, trainable=False)

  def __call__(self, x):
    self.update_var('n', self.get_var('n') + 1)
    self.add_summary('mean', lambda: jnp.mean(x))
    self.add_summary('mean', jnp.mean(x) + 1)
    self.add_summary('chatty', jnp.mean(x), verbosity=4)
    self.add_aux_loss('penalty', 0.5, weight=2.0)
    return x


class Net(base_layer.BaseLayer):
  linear_tpl: Any = pax_fiddle.template_field(Linear)

  def setup(self):
    self.create_children('layers', [self.linear_tpl] * 2)
    self.create_child('counter', Counter.config())

  def __call__(self, x):
    return self.counter(self.layers[1](self.layers[0](x)))


def net(**kwargs) -> tuple[Net, dict]:
  linear = Linear.HParams(input_dims=2, output_dims=2)
  layer = Net.config(linear_tpl=linear, **kwargs).Instantiate()
  return layer, layer.init(jax.random.key(0), jnp.ones([1, 2]))


def test_a_layer_has_no_texts():
  class Writing(base_layer.BaseLayer):
    def __call__(self, x):
      self.add_summary('note', 'x', base_layer.SummaryType.TEXT)
      return x

  with pytest.raises(ValueError, match=r"add_summary\('note'\) .* got a text"):
    Writing.config().Instantiate().apply({}, jnp.ones([1]))


def test_variable_tree():
  _, variables = net()
  shapes = jax.tree.map(jnp.shape, variables)
  assert shapes == {
    'params': {'layers_0': {'w': (2, 2)}, 'layers_1': {'w': (2, 2)}},
    'non_trainable': {'counter': {'n': ()}},
  }
  w0, w1 = (variables['params'][f'layers_{i}']['w'] for i in range(2))
  assert not np.allclose(w0, w1)


def test_apply_is_the_product_of_the_weights():
  layer, variables = net()
  x = jnp.array([[1.0, -2.0]])
  w0, w1 = (variables['params'][f'layers_{i}']['w'] for i in range(2))
  np.testing.assert_allclose(
    layer.apply(variables, x), np.asarray(x) @ w0 @ w1, rtol=1e-6
  )


def test_mutable_collections():
  layer, variables = net()
  _, updates = layer.apply(
    variables,
    jnp.ones([1, 2]),
    mutable=[
      base_layer.NON_TRAINABLE,
      base_layer.SUMMARIES,
      base_layer.AUX_LOSS,
    ],
  )
  assert float(updates['non_trainable']['counter']['n']) == 1.0
  loss = updates['aux_loss']['counter']['penalty']
  assert (float(loss.value), float(loss.weight)) == (0.5, 2.0)
  summaries = updates['summaries']['counter']
  assert sorted(summaries) == ['mean1_scalar', 'mean_scalar']
  np.testing.assert_allclose(
    summaries['mean1_scalar'] - summaries['mean_scalar'], 1.0, rtol=1e-6
  )


def test_fprop_dtype_casts_theta_but_not_storage():
  layer, variables = net(fprop_dtype=jnp.bfloat16)
  assert variables['params']['layers_0']['w'].dtype == jnp.float32
  out = layer.apply(variables, jnp.ones([1, 2], jnp.bfloat16))
  assert out.dtype == jnp.bfloat16


class Careful(Linear):
  def setup(self):
    flags = [Flags.DISALLOW_BFLOAT16_CONVERSION]
    self.create_variable('w', WeightHParams(shape=[2, 2], collections=flags))


def test_a_weight_may_refuse_bfloat16():
  layer = Careful.config(fprop_dtype=jnp.bfloat16).Instantiate()
  x = jnp.ones([1, 2], jnp.bfloat16)
  assert layer.apply(layer.init(jax.random.key(0), x), x).dtype == jnp.float32


def test_children_inherit_only_what_they_leave_unset():
  own = Linear.config(input_dims=2, output_dims=2, dtype=jnp.bfloat16)
  layer = Net.config(
    linear_tpl=own,
    params_init=WeightInit.Constant(2.0),
    skip_lp_regularization=True,
    ici_mesh_shape=[1, 1],
    mesh_axis_names=['data', 'mdl'],
  ).Instantiate()
  tree = layer.abstract_init_with_metadata(jnp.ones([1, 2]))
  w = tree['params']['layers_0']['w']
  assert w.dtype == jnp.bfloat16
  assert w.init == WeightInit.Constant(2.0)
  assert w.collections == [Flags.SKIP_LP_REGULARIZATION]
  assert w.tensor_split_dims_mapping == (-1, -1)
  assert tree['non_trainable']['counter']['n'].dtype == jnp.float32


class Gaussian(Linear):
  params_init: WeightInit = WeightInit.Gaussian(0.1)


def test_a_default_of_the_childs_class_is_not_inherited_over():
  layer = Net.config(
    linear_tpl=Gaussian.config(output_dims=2),
    params_init=WeightInit.Constant(2.0),
  ).Instantiate()
  tree = layer.abstract_init_with_metadata(jnp.ones([1, 2]))
  assert tree['params']['layers_0']['w'].init == WeightInit.Gaussian(0.1)


def test_configs_of_all_layers_after_inheritance():
  layer, _ = net(fprop_dtype=jnp.bfloat16)
  tree = layer.abstract_init_with_mdl_config(jnp.ones([1, 2]))
  config = tree['layers_1']['_hparams']
  assert config.cls is Linear
  assert config.fprop_dtype == jnp.bfloat16
  assert config.output_dims == 2


class Scanned(base_layer.BaseLayer):
  def setup(self):
    self.create_child('sub', Linear.config(output_dims=2))

  def __call__(self, x):
    scan = nn.scan(
      lambda layer, carry, _: (layer(carry), None),
      variable_axes={base_layer.PARAMS: 0},
      split_rngs={base_layer.PARAMS: True},
      length=3,
      metadata_params={'x_times': 3, 'prefix_split_dims_mapping': 'mdl'},
    )
    return scan(self.sub, x, None)[0]


def test_scan_stacks_weights_and_their_declarations():
  layer = Scanned.config(
    ici_mesh_shape=[1, 3], mesh_axis_names=['data', 'mdl']
  ).Instantiate()
  x = jnp.ones([1, 2])
  w = layer.abstract_init_with_metadata(x)['params']['sub']['w']
  assert (w.shape, w.repeat_prefix, w.full_shape) == ([2, 2], [3], (3, 2, 2))
  assert w.full_split_dims_mapping == ['mdl', -1, -1]
  stacked = layer.init(jax.random.key(0), x)['params']['sub']['w']
  assert stacked.shape == (3, 2, 2)
  assert not np.allclose(stacked[0], stacked[1])


def test_sharded_prefix_shards_weights_without_a_mapping():
  def mapping(prefix):
    return base_layer.WeightHParams(
      shape=[4],
      repeat_prefix=[2, 3],
      repeat_prefix_split_dims_mapping=prefix,
    ).full_split_dims_mapping

  assert mapping([-1, 'stage']) == [-1, 'stage', -1]
  assert mapping([-1, None]) is None


def test_keys_differ_by_call_and_repeat_by_seed():
  class Noisy(base_layer.BaseLayer):
    def __call__(self, x):
      return [jax.random.uniform(self.next_prng_key()) for _ in range(2)]

  layer = Noisy.config().Instantiate()
  first = layer.apply({}, 0, rngs=jax.random.key(1))
  again = layer.apply({}, 0, rngs=jax.random.key(1))
  assert first[0] != first[1]
  assert first == again


def test_a_single_key_initializes_what_the_key_of_params_does():
  layer, key = Linear.config(name='linear').Instantiate(), jax.random.key(3)
  x = jnp.ones([1, 2])
  single, params = (layer.init(rngs, x) for rngs in (key, {'params': key}))
  jax.tree.map(np.testing.assert_array_equal, single, params)


def test_do_eval_comes_from_the_context():
  class Mode(base_layer.BaseLayer):
    def __call__(self):
      return self.do_eval

  layer = Mode.config().Instantiate()
  assert layer.apply({}) is False
  with JaxContext.new_context(hparams=JaxContext.HParams(do_eval=True)):
    assert layer.apply({}) is True
    with JaxContext.new_context():
      assert layer.apply({}) is True


def test_decode_state():
  class Cache(base_layer.BaseLayer):
    def __call__(self, x):
      self.update_decode_state('last', x)
      return self.get_decode_state('last')

  layer = Cache.config().Instantiate()
  out, updates = layer.apply({}, 5.0, mutable=[base_layer.DECODE_CACHE])
  assert out == 5.0 and updates['decoder_cache']['last'] == 5.0
  with pytest.raises(KeyError, match="no decode state 'last'"):
    layer.apply({}, 5.0)


def expect_in_setup(setup, error, match):
  class Bad(base_layer.BaseLayer):
    def __call__(self):
      pass

  Bad.setup = setup
  with pytest.raises(error, match=match):
    Bad.config().Instantiate().init(jax.random.key(0))


def test_mistakes_in_setup():
  weight = WeightHParams(shape=[2])
  config = Linear.config()
  expect_in_setup(
    lambda self: self.create_child('linear', Linear(parent=None)),
    ValueError,
    'Expected templates .* .an instance: pass its Config',
  )
  expect_in_setup(
    lambda self: [self.create_child('a', config) for _ in range(2)],
    ValueError,
    "has a child 'a' already",
  )
  expect_in_setup(
    lambda self: self.create_child('dtype', config),
    AttributeError,
    'the name of a field',
  )
  expect_in_setup(
    lambda self: self.create_variable('dtype', weight),
    AttributeError,
    "has an attribute 'dtype'",
  )
  expect_in_setup(
    lambda self: self.create_variable('w', WeightHParams(shape=[0, 2])),
    ValueError,
    'needs positive dimensions',
  )
  expect_in_setup(
    lambda self: (self.create_variable('w', weight), self.theta.v),
    AttributeError,
    "no weight 'v'",
  )


@pytest.mark.parametrize('sequence', [list, tuple])
def test_declared_shape_is_the_one_of_the_declaration(sequence):
  weight = WeightHParams(shape=sequence([2, 3]))
  assert weight.shape == sequence([2, 3])
  weight.repeat_prefix = [4]
  assert weight.full_shape == (4, 2, 3)
  assert hash(weight) == hash(WeightHParams(shape=(2, 3)))


def test_mapping_must_fit_the_shape():
  declare = functools.partial(
    WeightHParams, shape=[2, 3], tensor_split_dims_mapping=['mdl']
  )
  assert declare().tensor_split_dims_mapping == ['mdl']
  with pytest.raises(ValueError, match='must have 2 entries'):
    declare(mesh_shape=[2])


def test_sharding_classes_must_derive_from_the_parents():
  with pytest.raises(ValueError, match='must derive from'):

    class Bad(base_layer.BaseLayer):
      class WeightSharding:
        wt = None


def test_extended_sharding_is_the_default_of_the_field():
  class Extended(base_layer.BaseLayer):
    class WeightSharding(base_layer.BaseLayer.WeightSharding):
      proj: Any = None

  config = Extended.config()
  config.weight_split_dims_mapping.proj = ['mdl']
  assert config.weight_split_dims_mapping.wt is None
  assert config.Instantiate().weight_split_dims_mapping.proj == ['mdl']


class Dtype(base_layer.BaseLayer):
  """Declares a variable of its input's dtype."""

  def __call__(self, x):
    self.update_decode_state('x', x)
    return x


def test_abstract_init_takes_float32_for_bfloat16():
  layer = Dtype.config(fprop_dtype=jnp.bfloat16).Instantiate()
  cache = [base_layer.DECODE_CACHE]
  for x, want in ((jnp.ones([2]), jnp.bfloat16), (jnp.arange(2), jnp.int32)):
    tree = layer.abstract_init_with_metadata(x, extra_mutable_list=cache)
    assert tree[base_layer.DECODE_CACHE]['x'].dtype == want


def test_abstract_init_captures_intermediates():
  tree = (
    Dtype.config()
    .Instantiate()
    .abstract_init_with_metadata(
      jnp.ones([2]),
      extra_mutable_list=[base_layer.INTERMEDIATES],
      capture_intermediates=True,
    )
  )
  (out,) = tree[base_layer.INTERMEDIATES]['__call__']
  assert out.shape == (2,)


def test_a_config_is_not_called_but_instantiated():
  with pytest.raises(TypeError, match='layer_p.Instantiate'):
    Linear(Linear.config())
  with pytest.raises(TypeError, match='layer_p.Instantiate'):
    Linear(dtype=Linear.config(), parent=None)
  layer = base_layer.instantiate(Linear.config(name='layer'))
  assert isinstance(layer, Linear)


class Losses(base_layer.BaseLayer):
  def setup(self):
    weight = WeightHParams(shape=[2])
    self.create_variable('seen', weight, trainable=False)

  def __call__(self, x):
    self.add_aux_loss('z', x, weight=2.0)
    self.add_aux_loss('z', 3 * x)
    self.update_var('seen', x)


def test_losses_of_one_name_add_up():
  layer = Losses.config().Instantiate()
  variables = {base_layer.NON_TRAINABLE: {'seen': jnp.zeros([])}}
  mutable = [base_layer.AUX_LOSS, base_layer.NON_TRAINABLE]
  _, updates = layer.apply(variables, jnp.float32(0.5), mutable=mutable)
  loss = updates['aux_loss']['z']
  assert (float(loss.value), float(loss.weight)) == (2.0, 3.0)
  assert float(loss.replace(value=0.0).weight) == 3.0
  variables = {base_layer.NON_TRAINABLE: {'seen': jnp.zeros([2])}}
  _, updates = layer.apply(variables, jnp.ones([2]), mutable=mutable)
  # Without a weight, each element has weight 1.
  np.testing.assert_array_equal(updates['aux_loss']['z'].weight, [3.0, 3.0])
  variables = {base_layer.NON_TRAINABLE: {'seen': jnp.zeros([2])}}
  with pytest.raises(
    ValueError, match=r"'seen'. expects shape \(2,\), got \(\)"
  ):
    layer.apply(variables, jnp.float32(0.5), mutable=mutable)


class Sublayers(base_layer.BaseLayer):
  tpl: Any = pax_fiddle.template_field(Linear)
  tpl_list: Any = pax_fiddle.template_field(None)
  tpl_dict: Any = pax_fiddle.template_field(None)
  bare: Any = pax_fiddle.instance_field(base_layer.BaseLayer)
  number: int = 3

  def setup(self):
    self.create_child('child', self.tpl)

  def __call__(self, x):
    return self.child(x) + self.bare.theta['w'] if self.number == 0 else x


def test_reflected_configs_leave_sub_layers_to_their_own_place():
  cfg = Sublayers.config(
    tpl=Linear.config(output_dims=2),
    tpl_list=[Linear.config(), None],
    tpl_dict={'a': Linear.config()},
  )
  tree = cfg.Instantiate().abstract_init_with_mdl_config(jnp.ones([1, 2]))
  own = tree['_hparams']
  subs = (own.tpl, own.tpl_list, own.tpl_dict, own.bare)
  assert subs == (None,) * 4 and own.number == 3


def test_small_questions():
  is_sub = base_layer.is_sublayer_template_or_instance
  made = Linear(parent=None)
  for value in (made, Linear.config(), [made, None], {'a': Linear.config()}):
    assert is_sub(value)
  for value in (None, [], {}, 3, [made, 3], WeightInit.Gaussian()):
    assert not is_sub(value)
  assert 'output_dims' in base_layer.get_template_fields(Linear.config())
  base_layer.assert_has_shape(jnp.ones([2, 3]), [-1, 3])
  for shape in ([3], [2, 4]):
    with pytest.raises(ValueError, match='must have shape'):
      base_layer.assert_has_shape(jnp.ones([2, 3]), shape)


def test_theta_may_be_replaced_by_a_descriptor():
  class Doubled(base_layer.Theta):
    def __getattr__(self, name):
      assert isinstance(self.module, Layer)
      assert self.module._weight_hparams[name].shape == [2]
      return 2 * super().__getattr__(name)

  class Descriptor(base_layer.ThetaDescriptor):
    def __get__(self, layer, owner=None):
      return Doubled(layer)

  class Layer(base_layer.BaseLayer):
    theta = Descriptor()

    def setup(self):
      self.create_variable('w', base_layer.WeightHParams(shape=[2]))

    def __call__(self, x):
      return x * self.theta.w, x * self.theta['w']

  layer = Layer.config(name='layer').Instantiate()
  x = jnp.ones(2)
  variables = layer.init(jax.random.key(0), x)
  want = 2 * np.asarray(variables['params']['w'])
  for got in layer.apply(variables, x):
    np.testing.assert_array_equal(got, want)


def test_theta_by_key():
  class Keyed(Linear):
    def fprop(self, x):
      return x @ self.theta['w']

  layer = Keyed.config().Instantiate()
  x = jnp.ones([1, 2])
  np.testing.assert_array_equal(
    layer.apply({'params': {'w': jnp.ones([2, 3])}}, x), np.full([1, 3], 2.0)
  )


class _Compact(base_layer.BaseLayer):
  """Builds its children in a compact method, in each of the ways."""

  linear_tpl: pax_fiddle.Config = pax_fiddle.template_field(Linear)

  @nn.compact
  def __call__(self, x):
    x = self.create_child('first', self.linear_tpl)(x)
    for layer in self.create_children('rest', [self.linear_tpl] * 2):
      x = layer(x)
    inline = Linear(name='inline', input_dims=2, output_dims=2)
    assert (inline.dtype, inline.fprop_dtype) == (self.dtype, self.fprop_dtype)
    assert inline.params_init == self.params_init
    return inline(x)


def test_children_of_a_compact_method_have_names_and_inherit():
  linear = Linear.config(input_dims=2, output_dims=2)
  layer = _Compact.config(
    linear_tpl=linear,
    dtype=jnp.bfloat16,
    params_init=base_layer.WeightInit.Constant(2.0),
  ).Instantiate()
  variables = layer.init(jax.random.key(0), jnp.ones([1, 2]))
  params = variables['params']
  assert sorted(params) == ['first', 'inline', 'rest_0', 'rest_1']
  for child in params.values():
    assert child['w'].dtype == jnp.bfloat16
    np.testing.assert_array_equal(child['w'], np.full((2, 2), 2.0))
  out = layer.apply(variables, jnp.ones([1, 2], jnp.bfloat16))
  np.testing.assert_array_equal(out, np.full((1, 2), 4.0**4))


def test_create_variable_returns_the_value():
  class Declares(base_layer.BaseLayer):
    def setup(self):
      self.w = self.create_variable('weight', WeightHParams(shape=[2]))

    def __call__(self):
      return self.w

  layer = Declares.config().Instantiate()
  variables = layer.init(jax.random.key(0))
  got = layer.apply(variables)
  np.testing.assert_array_equal(got, variables['params']['weight'])


def test_summaries_of_an_earlier_call_are_ignored():
  layer, variables = net()
  apply = functools.partial(layer.apply, mutable=True)
  _, first = apply(variables, jnp.ones([1, 2]))
  _, second = apply(first, jnp.full([1, 2], 2.0))
  assert jax.tree.structure(first) == jax.tree.structure(second)
  mean = lambda tree: float(tree['summaries']['counter']['mean_scalar'])
  np.testing.assert_allclose(mean(second), 2 * mean(first), rtol=1e-6)


def test_a_default_without_annotation_has_no_effect(caplog):
  class Primer(base_layer.BaseLayer):
    norm_policy: str = 'primer'

  class Pre(Primer):
    norm_policy = 'pre'

  assert pax_fiddle.Config(Pre).Instantiate().norm_policy == 'primer'
  assert 'Pre.norm_policy' in caplog.text and 'annotation' in caplog.text


def test_collections_of_a_declaration_can_be_extended():
  declared = base_layer.WeightHParams(
    shape=[2], collections=(Flags.REQUIRES_MEAN_SYNC,)
  )
  more = base_layer.WeightHParams(
    shape=[2], collections=declared.collections + [Flags.NON_TRAINABLE]
  )
  assert more.collections == [Flags.REQUIRES_MEAN_SYNC, Flags.NON_TRAINABLE]
  assert base_layer.WeightHParams(shape=[2]).collections == []


def test_lists_of_a_bound_layer_are_tuples_and_modules_in_them_children():
  class Lists(base_layer.BaseLayer):
    numbers: Any = pax_fiddle.instance_field(list)
    layers: Any = pax_fiddle.instance_field(list)

    def setup(self):
      self.sums = [3]

    def __call__(self, x):
      assert (self.numbers, self.sums) == ((1, 2), (3,))
      assert isinstance(self.layers, tuple)
      return self.layers[0].fprop(x)

  layer = Lists.config(numbers=[1, 2], layers=[Linear.config()]).Instantiate()
  variables = layer.init(jax.random.key(0), jnp.ones((1, 2)))
  assert list(variables['params']) == ['layers_0']
