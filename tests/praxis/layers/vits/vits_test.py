# SPDX-License-Identifier: Apache-2.0
"""Vision transformers: patches, patch embedding and head against numpy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import pax_fiddle
from praxis.layers import poolings, vits
from tests.praxis.layers.running import build, jit, normal, run


def test_patches_are_cut_row_by_row_and_put_back():
  img = normal(2, 4, 6, 3)
  patches = vits.image_to_patch(img, 2)
  assert patches.shape == (2, 6, 12)
  for row in range(2):
    for column in range(3):
      rows, columns = (
        slice(2 * row, 2 * row + 2),
        slice(2 * column, 2 * column + 2),
      )
      want = np.asarray(img)[:, rows, columns].reshape(2, -1)
      np.testing.assert_array_equal(patches[:, row * 3 + column], want)
  back = vits.patch_to_image(patches, img.shape, 2)
  np.testing.assert_array_equal(back, img)


def _resize(emb, source, target):
  """Bilinear interpolation with aligned centers and antialiasing."""

  def weights(old, new):
    # Downsampling widens the triangle kernel.
    scale = max(old / new, 1.0)
    centers = (np.arange(new) + 0.5) * old / new - 0.5
    reach = np.abs(centers[:, None] - np.arange(old)) / scale
    w = np.maximum(1 - reach, 0)
    return w / w.sum(1, keepdims=True)

  grid = np.asarray(emb, np.float64).reshape(*source, -1)
  grid = np.einsum('ar,bc,rcd->abd', *map(weights, source, target), grid)
  return grid.reshape(1, -1, grid.shape[-1])


@pytest.mark.parametrize('target', [(4, 3), (1, 5)])
def test_embeddings_are_resized(target):
  emb = normal(1, 6, 4)
  got = vits.interpolate_embedding_2d(emb, (2, 3), target)
  np.testing.assert_allclose(got, _resize(emb, (2, 3), target), atol=1e-5)


def _entry(**fields):
  cfg = vits.build_vision_transformer_hparams_for_test(
    (2, 2), 2, 3, 4, 8, 1, 2
  ).entry_layers_tpl
  return cfg.set(**fields)


def test_entry():
  img = normal(2, 4, 6, 3)
  cfg = _entry(prepend_cls_tokens=1, append_cls_tokens=2)
  layer, variables = build(cfg, img)
  p = jax.tree.map(lambda x: np.asarray(x, np.float64), variables['params'])
  patches = np.asarray(vits.image_to_patch(img, 2), np.float64)
  projection = p['patch_projection']
  want = patches @ projection['linear']['w'] + projection['bias']['b']
  want += _resize(p['pos_emb']['emb_var'], (2, 2), (2, 3))
  broadcast = lambda x: np.broadcast_to(x, (2, *x.shape[1:]))
  want = np.concatenate(
    [broadcast(p['prepend_cls_embs']), want, broadcast(p['append_cls_embs'])],
    axis=1,
  )
  np.testing.assert_allclose(run(layer, variables, img), want, atol=1e-5)
  # Four patches use the embeddings without interpolation.
  square = patches[:, :4] @ projection['linear']['w'] + projection['bias']['b']
  square += p['pos_emb']['emb_var']
  got = run(layer, variables, jnp.asarray(patches[:, :4], jnp.float32))
  np.testing.assert_allclose(got[:, 1:5], square, atol=1e-5)


def test_entry_without_embedding_drops_out_in_training_only():
  img = normal(2, 4, 4, 3)
  cfg = _entry(pos_emb_tpl=None, input_fc_has_bias=False)
  layer, variables = build(cfg, img)
  assert set(variables['params']) == {'patch_projection'}
  dropping = cfg.clone().set(pos_emb_dropout_prob=0.5, name='layer')
  dropping = dropping.Instantiate()
  want = run(layer, variables, img)
  np.testing.assert_array_equal(
    run(dropping, variables, img, do_eval=True), want
  )
  got = run(dropping, variables, img, rngs={'random': jax.random.key(0)})
  kept = np.asarray(got) != 0
  np.testing.assert_allclose(got, np.where(kept, 2 * want, 0), atol=1e-5)
  assert 0 < kept.sum() < kept.size


def test_exit_and_its_gradient():
  x, mark = normal(2, 3, 4), normal(2, 5, seed=2)
  cfg = vits.VitExitLayers.config(hidden_dim=4, output_dim=5)
  layer, variables = build(cfg, x)
  p = jax.tree.map(lambda x: np.asarray(x, np.float64), variables['params'])

  def reference(x):
    y = x - x.mean(-1, keepdims=True)
    y /= np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    y = (y * (1 + p['ln']['scale']) + p['ln']['bias']).mean(1)
    return np.tanh(y @ p['fc_tanh']['linear']['w'] + p['fc_tanh']['bias']['b'])

  value = lambda x: jnp.sum(layer.apply(variables, x) * mark)
  got, grad = jit(lambda x: (layer.apply(variables, x), jax.grad(value)(x)))(x)
  x = np.asarray(x, np.float64)
  np.testing.assert_allclose(got, reference(x), atol=1e-5)
  for at in [(0, 0, 0), (1, 2, 3)]:
    step = np.zeros(x.shape)
    step[at] = 1e-6
    want = (
      np.sum((reference(x + step) - reference(x - step)) * np.asarray(mark))
      / 2e-6
    )
    np.testing.assert_allclose(grad[at], want, atol=1e-4)


@pytest.mark.parametrize(
  'fields, names, shape',
  [
    (
      {'output_dim': 5, 'output_fc_tanh': False},
      {'ln', 'output_projection'},
      (2, 5),
    ),
    ({'output_dim': 4, 'output_fc_tanh': False}, {'ln'}, (2, 4)),
    (
      {'output_fc_tanh': False, 'pre_ln': False, 'pooled': False},
      set(),
      (2, 3, 4),
    ),
  ],
)
def test_exits(fields, names, shape):
  x = normal(2, 3, 4)
  layer, variables = build(vits.VitExitLayers.config(hidden_dim=4, **fields), x)
  assert set(variables.get('params', {})) == names
  assert run(layer, variables, x).shape == shape


def _vit():
  cfg = vits.build_vision_transformer_hparams_for_test(
    pos_emb_shapes=(2, 2),
    patch_size=2,
    image_channels=3,
    model_dims=8,
    mlp_dims=16,
    num_xformer_layers=1,
    num_heads=2,
  )
  return cfg


def test_vision_transformer_in_bfloat16():
  img = normal(2, 4, 4, 3)
  cfg = _vit().set(fprop_dtype=jnp.bfloat16)
  layer, variables = build(cfg, img)
  assert set(variables['params']) == {
    'entry_stack',
    'transformers_stack',
    'exit_stack',
  }
  got = run(layer, variables, img)
  assert got.shape == (2, 8) and got.dtype == jnp.bfloat16


def test_padded_patches_are_not_seen():
  cfg = _vit()
  cfg.exit_layers_tpl.pooled = False
  patches = normal(1, 4, 12)
  paddings = jnp.asarray([[0.0, 0, 0, 1]])
  layer, variables = build(cfg, patches, paddings)
  both = run(
    layer,
    variables,
    jnp.concatenate([patches, patches.at[:, 3].add(1.0)]),
    jnp.concatenate([paddings, paddings]),
  )
  np.testing.assert_allclose(both[0, :3], both[1, :3], atol=1e-6)


def test_transformer_alone():
  cfg = _vit().set(entry_layers_tpl=None, exit_layers_tpl=None)
  x = normal(2, 3, 8)
  layer, variables = build(cfg, x)
  assert set(variables['params']) == {'transformers_stack'}
  assert run(layer, variables, x).shape == x.shape


def test_entry_and_exit_are_split_over_the_mesh():
  cfg = _vit().set(
    full_data_parallel_on_entry_exit=True,
    ici_mesh_shape=[1, 2, 2],
    mesh_axis_names=['replica', 'data', 'mdl'],
    name='vit',
  )
  layer = cfg.Instantiate()
  mesh = jax.make_mesh(
    (1, 2, 2),
    ('replica', 'data', 'mdl'),
    axis_types=(jax.sharding.AxisType.Auto,) * 3,
    devices=jax.devices()[:4],
  )
  img = jnp.zeros([4, 4, 4, 3])
  variables = layer.abstract_init_with_metadata(img)
  variables = jax.tree.map(lambda w: jnp.zeros(w.shape, w.dtype), variables)
  with jax.set_mesh(mesh):
    out = jit(layer.apply)(variables, img)
  assert out.sharding.shard_shape(out.shape) == (1, 8)


def test_bad_settings():
  img = normal(1, 4, 4, 3)
  with pytest.raises(ValueError, match='must be multiples of patch_size'):
    vits.image_to_patch(img, 3)
  with pytest.raises(ValueError, match='must be multiples of patch_size'):
    vits.patch_to_image(normal(1, 4, 12), (1, 4, 5, 3), 2)
  with pytest.raises(ValueError, match='img_shape must be'):
    vits.patch_to_image(normal(1, 4, 12), (4, 4, 3), 2)
  with pytest.raises(ValueError, match='for a grid of 2 x 3'):
    vits.interpolate_embedding_2d(normal(1, 5, 4), (2, 3), (4, 4))
  with pytest.raises(ValueError, match='inputs must be images'):
    build(_entry(), normal(1, 4))
  with pytest.raises(ValueError, match='must have 4 patches'):
    build(_entry(), normal(1, 5, 12))
  with pytest.raises(ValueError, match='needs transformer_layers_tpl'):
    build(_vit().set(transformer_layers_tpl=None), img)
  exit_layers = vits.VitExitLayers.config(
    hidden_dim=3, pooling_tpl=pax_fiddle.Config(poolings.GlobalPooling)
  )
  with pytest.raises(ValueError, match='pooling_dims must be a list'):
    build(exit_layers, normal(1, 4, 3))
