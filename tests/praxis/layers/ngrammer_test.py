# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""N-Grammers against numpy loops."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer
from praxis.layers import attentions, ngrammer
from tests.praxis.layers import running
from tests.testing import numpy_layers

_B, _L, _N, _H, _V = 2, 5, 2, 4, 7
_TABLE = 10
# The first two primes above _TABLE.
_PRIMES = (11, 13)
_IDS = np.array([[3, 0, 6, 1, 2], [5, 5, 4, 0, 0]], np.int32)
_POS = np.array([[0, 1, 0, 1, 2], [0, 1, 2, 3, 4]], np.int32)
_PAD = np.array([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1]], np.float32)
_HEADS = {'num_heads': _N, 'dim_per_head': _H}


def _embs(seed=7):
  return running.normal(_B, _L, _N * _H, seed=seed)


def _pairs(ids, pos=None, partner=None):
  """Bigram ids, id + _V * paired id, in a loop; ids [B, L]."""
  bigrams = np.zeros(ids.shape, np.int64)
  for b, t in np.ndindex(*ids.shape):
    j = t - 1 if partner is None else partner[b, t]
    is_first = pos is not None and pos[b, t] == 0
    has_none = is_first or j not in range(ids.shape[1])
    bigrams[b, t] = ids[b, t] + _V * (0 if has_none else ids[b, j])
  return bigrams


def _by_hand(params, ids, embs, *, vectors=None, concat=True, **pairing):
  """The output of an N-Grammer, [B, L, N, H]; ids [B, L, N]."""
  heads = np.asarray(embs, np.float64).reshape(_B, _L, _N, _H)
  out = []
  for n in range(_N):
    if vectors is None:
      partner = pairing.get('partners')
      bigrams = _pairs(
        ids[:, :, n],
        pairing.get('pos'),
        None if partner is None else partner[:, n],
      )
      hashed = (bigrams * (n + 1) + n + 1) % _PRIMES[n] % _TABLE
      looked_up = params[f'ngram_table_{n}']['emb_var'][hashed]
    else:
      looked_up = vectors[:, :, n]
    head = numpy_layers.layer_norm(
      heads[:, :, n], params[f'emb_layer_norm_{n}']
    )
    grams = numpy_layers.layer_norm(looked_up, params[f'ngram_layer_norm_{n}'])
    head_dims = _H - grams.shape[-1]
    concatenated = np.concatenate([head[..., :head_dims], grams], -1)
    out.append(concatenated if concat else head + grams)
  return np.stack(out, axis=2)


def _numpy(tree):
  return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


@pytest.mark.parametrize(
  'pos, pair_ids, want',
  [
    (None, None, [3, 21, 6, 43, 9]),
    (_POS[:1], None, [3, 21, 6, 43, 9]),
    (None, [[5, 0, 0, 2, 4]], [3, 21, 27, 43, 16]),
    ([[0, 1, 2, 0, 1]], [[5, 0, 0, 2, 4]], [3, 21, 27, 1, 16]),
  ],
)
def test_bigram_ids(pos, pair_ids, want):
  as_ids = lambda x: None if x is None else jnp.asarray(x, jnp.int32)
  got = ngrammer.get_bigram_ids(
    as_ids(_IDS[:1]), _V, as_ids(pos), as_ids(pair_ids)
  )
  np.testing.assert_array_equal(got[0], want)
  with pytest.raises(ValueError, match='vocab_size must be > 0'):
    ngrammer.get_bigram_ids(as_ids(_IDS), 0)


def _ngrammer(**kwargs):
  return ngrammer.Ngrammer.config(
    ngram_vocab_size=_TABLE, unigram_vocab_size=_V, ngram_emb_dim=3, **_HEADS
  ).set(**kwargs)


@pytest.mark.parametrize('concat', [True, False])
def test_ngrammer_equals_numpy(concat):
  dim = 3 if concat else _H
  config = _ngrammer(concat_ngrams=concat, ngram_emb_dim=dim)
  layer, variables = running.build(config, jnp.asarray(_IDS), _embs())
  params = _numpy(variables['params'])
  ids = np.stack([_IDS] * _N, axis=-1)
  want = _by_hand(params, ids, _embs(), concat=concat, pos=_POS)
  want *= 1 - _PAD[..., None, None]
  args = (_embs(), jnp.asarray(_PAD), jnp.asarray(_POS))
  got = running.run(layer, variables, jnp.asarray(_IDS), *args)
  np.testing.assert_allclose(got, want.reshape(_B, _L, -1), atol=1e-4)
  # Different ids and pairs for each head; heads are not merged.
  ids[..., 1] = ids[::-1, ::-1, 0]
  partners = np.stack([_POS, _POS + 2], axis=1)
  apply = lambda ids, embs, pairs: layer.apply(
    variables, ids, embs, merge_heads=False, pair_ids=pairs
  )
  embs = _embs().reshape(_B, _L, _N, _H)
  got = running.jit(apply)(jnp.asarray(ids), embs, jnp.asarray(partners))
  want = _by_hand(params, ids, _embs(), concat=concat, partners=partners)
  np.testing.assert_allclose(got, want, atol=1e-4)


def test_ngrammer_gradients():
  config = _ngrammer()
  layer, variables = running.build(config, jnp.asarray(_IDS), _embs())
  params = variables['params']
  direction = jax.tree.map(
    lambda x: np.random.default_rng(1).normal(size=x.shape), (params, _embs())
  )

  def by_hand(step):
    moved, embs = jax.tree.map(
      lambda x, d: np.asarray(x, np.float64) + step * d,
      (params, _embs()),
      direction,
    )
    ids = np.stack([_IDS] * _N, axis=-1)
    return np.sin(_by_hand(moved, ids, embs)).sum()

  @running.jit
  def gradient(params, embs):
    loss = lambda p, e: jnp.sum(
      jnp.sin(layer.apply({'params': p}, jnp.asarray(_IDS), e))
    )
    return jax.grad(loss, (0, 1))(params, embs)

  got = gradient(params, _embs())
  along = sum(
    np.sum(np.asarray(g, np.float64) * d)
    for g, d in zip(
      jax.tree.leaves(got), jax.tree.leaves(direction), strict=True
    )
  )
  want = (by_hand(1e-5) - by_hand(-1e-5)) / 2e-5
  np.testing.assert_allclose(along, want, rtol=1e-3)


def test_bfloat16_and_sharding():
  config = _ngrammer(
    fprop_dtype=jnp.bfloat16,
    ici_mesh_shape=[1, 1, 1],
    mesh_axis_names=['replica', 'data', 'mdl'],
  )
  config = ngrammer.VQNgrammer.set_canonical_sharding_params(
    config,
    replica_axis='replica',
    data_axis='data',
    mdl_axis='mdl',
    ici_mesh_shape=[1, 1, 1],
    dcn_mesh_shape=None,
    mesh_axis_names=['replica', 'data', 'mdl'],
    training_optimized=True,
  )
  layer = config.Instantiate()
  tree = layer.abstract_init_with_metadata(jnp.asarray(_IDS), _embs())
  table = tree['params']['ngram_table_1']['emb_var']
  assert list(table.tensor_split_dims_mapping) == ['mdl', 'data']
  plain = _ngrammer(fprop_dtype=jnp.bfloat16)
  layer, variables = running.build(plain, jnp.asarray(_IDS), _embs())
  got = running.run(layer, variables, jnp.asarray(_IDS), _embs())
  assert got.dtype == jnp.bfloat16
  ids = np.stack([_IDS] * _N, axis=-1)
  want = _by_hand(_numpy(variables['params']), ids, _embs())
  got = got.astype(np.float32)
  np.testing.assert_allclose(got, want.reshape(_B, _L, -1), atol=0.1)


def _distances(heads, means):
  return ((heads[..., None, :] - means) ** 2).sum(-1)


@pytest.mark.parametrize('prenormalize', [False, True])
def test_vector_quantization_equals_numpy(prenormalize):
  config = ngrammer.VectorQuantization.config(
    num_clusters=3, decay=0.8, prenormalize=prenormalize, **_HEADS
  )
  layer, variables = running.build(config, _embs(), jnp.asarray(_PAD))
  means = np.asarray(variables['non_trainable']['means'], np.float64)
  heads = np.asarray(_embs(), np.float64).reshape(_B, _L, _N, _H)
  if prenormalize:
    heads /= np.linalg.norm(heads, axis=-1, keepdims=True)
  distances = _distances(heads, means)
  (got, nearest), new = running.run(
    layer,
    variables,
    _embs(),
    jnp.asarray(_PAD),
    mutable=[base_layer.NON_TRAINABLE, base_layer.SUMMARIES],
  )
  np.testing.assert_allclose(got, distances, atol=1e-4)
  sums, counts = np.zeros_like(means), np.zeros((_N, 3))
  for b, t, n in np.ndindex(_B, _L, _N):
    k = distances[b, t, n].argmin()
    if _PAD[b, t]:
      np.testing.assert_array_equal(nearest[b, t, n], 0)
      continue
    np.testing.assert_allclose(nearest[b, t, n], means[n, k], atol=1e-6)
    sums[n, k] += heads[b, t, n]
    counts[n, k] += 1
  moved = 0.8 * means + 0.2 * sums / (1e-6 + counts[..., None])
  np.testing.assert_allclose(new['non_trainable']['means'], moved, atol=1e-5)
  name = 'k_means/centroid/max_cluster_proportion/head1_scalar'
  summary = new['summaries'][name]
  np.testing.assert_allclose(summary, counts[1].max() / 8, rtol=1e-4)


def test_heads_of_zeros_have_a_gradient():
  config = ngrammer.VectorQuantization.config(
    num_clusters=3, prenormalize=True, **_HEADS
  )
  embs = _embs().at[0, 0].set(0.0)
  layer, variables = running.build(config, embs)

  def total(embs):
    return jnp.sum(layer.apply(variables, embs, mutable=True)[0][0])

  assert jnp.isfinite(running.jit(jax.grad(total))(embs)).all()


def _vq(**kwargs):
  return ngrammer.VQNgrammer.config(
    ngram_vocab_size=_TABLE,
    ngram_emb_dim=3,
    concat_ngrams=True,
    num_clusters=_V,
    **_HEADS,
  ).set(**kwargs)


def _clusters(variables, embs):
  means = np.asarray(variables['non_trainable']['vq_layer']['means'])
  heads = np.asarray(embs).reshape(*embs.shape[:2], _N, _H)
  return _distances(heads, means).argmin(-1)


def test_vq_ngrammer_fills_and_reads_its_table():
  tokens = running.normal(_V, _N * _H, seed=3)
  config = _vq(unigram_vocab_size=_V, full_update_cache_steps=(1,))
  kwargs = {'emb_var': tokens}
  args = (jnp.asarray(_IDS), _embs(), jnp.asarray(_PAD), jnp.asarray(_POS))
  layer, variables = running.build(config, *args, **kwargs)
  table = 'input_id_to_cluster_id_cache'
  fixed = variables['non_trainable']
  fixed['count'] = jnp.zeros_like(fixed['count'])
  fixed[table] = jnp.full_like(fixed[table], -1)
  want = _by_hand(
    _numpy(variables['params']['ngram_layer']),
    _clusters(variables, _embs()),
    _embs(),
    pos=_POS,
  )
  want = (want * (1 - _PAD[..., None, None])).reshape(_B, _L, -1)
  train = running.compiled(layer, mutable=[base_layer.NON_TRAINABLE])
  got, new = train(variables, *args, **kwargs)
  np.testing.assert_allclose(got, want, atol=1e-4)
  seen = np.unique(_IDS)
  stored = np.asarray(new['non_trainable'][table])
  assert (stored[np.setdiff1d(np.arange(_V), seen)] == -1).all()
  np.testing.assert_array_equal(stored[6], _clusters(variables, _embs())[0, 2])
  # Step 1 caches the cluster ids of all tokens with the current centroids.
  _, all_stored = train({**variables, **new}, *args, **kwargs)
  np.testing.assert_array_equal(
    all_stored['non_trainable'][table],
    _clusters({**variables, **new}, tokens[None])[0],
  )
  reader = config.clone().set(use_cached_input_ids_to_cluster_ids=True)
  ids = np.asarray(all_stored['non_trainable'][table])[_IDS]
  got = running.run(
    reader.Instantiate(), {**variables, **all_stored}, *args, do_eval=True
  )
  want = _by_hand(
    _numpy(variables['params']['ngram_layer']), ids, _embs(), pos=_POS
  )
  want = (want * (1 - _PAD[..., None, None])).reshape(_B, _L, -1)
  np.testing.assert_allclose(got, want, atol=1e-4)


def _scores():
  return jax.nn.softmax(running.normal(_B, _N, _L, _L, seed=5))


@pytest.mark.parametrize('causal', [True, False])
def test_vq_ngrammer_pairs_by_attention(causal):
  config = _vq(ngram_using_attention_scores=True, causal_attention=causal)
  kwargs = {'attention_scores': _scores()}
  layer, variables = running.build(config, None, _embs(), **kwargs)
  scores = np.asarray(_scores())
  partners = np.full((_B, _N, _L), _L)
  for b, n, t in np.ndindex(*partners.shape):
    allowed = scores[b, n, t, : t if causal else None]
    if allowed.size:
      partners[b, n, t] = allowed.argmax()
  params = _numpy(variables['params']['ngram_layer'])
  ids = _clusters(variables, _embs())
  want = _by_hand(params, ids, _embs(), partners=partners)
  run = lambda *args, **kwargs: running.run(
    layer, variables, *args, do_eval=True, **kwargs
  )
  got = run(None, _embs(), **kwargs)
  np.testing.assert_allclose(got, want.reshape(_B, _L, -1), atol=1e-4)
  if not causal:
    with pytest.raises(ValueError, match='cannot decode'):
      run(_embs(), 0, method='extend_step', attention_score=_scores()[:, :, 0])
    return
  with pytest.raises(
    ValueError, match='attention_score of .* must not be None'
  ):
    run(_embs(), 0, method='extend_step')
  _check_steps(layer, variables, got, _scores())


def _check_steps(layer, variables, want, scores=None):
  """Decoding, with arbitrary later inputs, equals the forward pass."""

  @running.jit
  def extend(embs, step, score):
    with base_layer.JaxContext.new_context(
      hparams=base_layer.JaxContext.HParams(do_eval=True)
    ):
      return layer.apply(
        variables, embs, step, attention_score=score, method='extend_step'
      )

  for t in range(_L):
    is_past = (jnp.arange(_L) <= t)[None, :, None]
    embs = jnp.where(is_past, _embs(), 100.0).reshape(_B, _L, _N, _H)
    score = None if scores is None else scores[:, :, t]
    got = extend(embs, jnp.int32(t), score)
    np.testing.assert_allclose(got, want[:, t], atol=1e-4)


@pytest.mark.parametrize('name', ['vq', 'stub'])
def test_decoding_equals_the_whole_sequence(name):
  config = _vq() if name == 'vq' else ngrammer.NgrammerStub.config(**_HEADS)
  layer, variables = running.build(config, None, _embs())
  whole = running.run(layer, variables, None, _embs(), do_eval=True)
  _check_steps(layer, variables, whole)


def test_before_the_first_token_is_cluster_0():
  layer, variables = running.build(_vq(), jnp.asarray(_IDS), _embs())
  embs = _embs().at[:, 1].set(0.0).at[:, 3].set(0.0)
  ids = _clusters(variables, embs)
  ids[(_IDS == 0) & (np.asarray(embs) == 0).all(-1)] = 0
  got = running.run(
    layer,
    variables,
    jnp.asarray(_IDS),
    embs,
    method=lambda layer, *args: layer(
      *args, check_time_step_zero=True, merge_heads=False
    ),
  )
  want = _by_hand(_numpy(variables['params']['ngram_layer']), ids, embs)
  np.testing.assert_allclose(got, want, atol=1e-4)


def _bregman(**kwargs):
  return ngrammer.BregmanNgrammer.config(
    ngram_vocab_size=6, ngram_emb_dim=3, num_components=2, end_step=9, **_HEADS
  ).set(**kwargs)


def test_bregman_ngrammer_equals_numpy():
  layer, variables = running.build(_bregman(), None, _embs())
  params = _numpy(variables['params'])
  compression = ngrammer.BregmanCompression.config(
    num_components=2, end_step=9, **_HEADS
  ).Instantiate()
  name = 'bregman_compression_layer'
  state = variables['non_trainable'][name]
  coefficients = np.asarray(
    running.run(compression, {'non_trainable': state}, _embs(), do_eval=True)
  )
  vectors = np.zeros((_B, _L, _N, 3))
  for b, t, n in np.ndindex(_B, _L, _N):
    now, before = coefficients[b, t, n], coefficients[b, max(t - 1, 0), n]
    for c, k, v in np.ndindex(2, 2, 6):
      weight = before[c] * now[k] * params['correlation'][c, k, v, n]
      vectors[b, t, n] += weight * params['embedding_table'][v, :, n]
  want = _by_hand(params, None, _embs(), vectors=vectors)
  want *= 1 - _PAD[..., None, None]
  got = running.run(
    layer, variables, None, _embs(), jnp.asarray(_PAD), do_eval=True
  )
  # The layer norm of small vectors amplifies rounding errors.
  np.testing.assert_allclose(got, want.reshape(_B, _L, -1), atol=3e-3)


def test_padding_does_not_move_components():
  config = ngrammer.BregmanCompression.config(
    num_components=2, end_step=9, **_HEADS
  )
  layer, variables = running.build(config, _embs(), jnp.asarray(_PAD))
  for head in variables['non_trainable'].values():
    head['step'] = jnp.float32(0)
  run = running.compiled(layer, mutable=[base_layer.NON_TRAINABLE])

  def train(pad):
    _, new = run(variables, _embs(), jnp.asarray(pad))
    return new['non_trainable']['bregman_layers_0']

  before = variables['non_trainable']['bregman_layers_0']
  nothing = train(np.ones_like(_PAD))
  np.testing.assert_allclose(
    nothing['components_momentum'],
    0.9 * before['components_momentum'],
    rtol=1e-6,
  )
  some = train(_PAD)
  assert not np.allclose(
    some['components_momentum'], nothing['components_momentum']
  )


@pytest.mark.parametrize(
  'config, message',
  [
    (_ngrammer(num_heads=0), 'num_heads > 0'),
    (_ngrammer(ngram_emb_dim=5), r'ngram_emb_dim .* must be in \[1, 4\]'),
    (_ngrammer(concat_ngrams=False), 'ngram_emb_dim .* must be 4'),
    (_ngrammer(dim_per_head=3), r'must end in \(num_heads, dim_per_head\)'),
    (_vq(num_clusters=0), 'num_clusters'),
    (_vq(ngram_emb_dim=5), r'ngram_emb_dim .* must be in \[1, 4\]'),
    (_vq(full_update_cache_frequency=2), 'set unigram_vocab_size'),
    (
      _vq(ngram_using_attention_scores=True),
      'attention_scores of .* must not be None',
    ),
    (
      _vq(unigram_vocab_size=_V, use_cached_input_ids_to_cluster_ids=True),
      'needs do_eval=True and input_ids',
    ),
    (
      _vq(unigram_vocab_size=_V, full_update_cache_frequency=2),
      'emb_var of .* must be',
    ),
    (_bregman(num_components=5), 'num_components from 1 to dim_per_head=4'),
  ],
)
def test_bad_settings(config, message):
  with pytest.raises(ValueError, match=message):
    running.build(config, jnp.asarray(_IDS), _embs())


def test_a_plain_ngrammer_after_an_attention_is_refused():
  config = attentions.DotProductAttention.config(
    input_dim=8, hidden_dim=8, num_heads=2
  )
  config.ngrammer_tpl = ngrammer.Ngrammer.config(
    ngram_vocab_size=8,
    unigram_vocab_size=4,
    ngram_emb_dim=2,
    num_heads=2,
    dim_per_head=4,
  )
  x = running.normal(1, 3, 8)
  with pytest.raises(ValueError, match='must be a VQNgrammer'):
    running.build(config, x, x, x, jnp.zeros((1, 1, 3, 3)))
