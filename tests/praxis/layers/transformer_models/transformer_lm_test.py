# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""The language model: what it sees, what it loses, and how it decodes."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer
from praxis.kernels import softmax_xent
from praxis.layers import embedding_softmax as es
from praxis.layers import ngrammer, transformer_models, transformers
from praxis.layers.transformer_models import LanguageModelType, stack_configs
from praxis.nested_map import NestedMap
from tests.praxis.layers import running
from tests.testing import nightly, numpy_layers
from tests.testing.layers import random_variables

_B, _T, _D, _V = 2, 6, 8, 13


def _lm(num_layers=1, **fields):
  lm = transformer_models.TransformerLm.config(
    name='lm', model_dims=_D, vocab_size=_V
  )
  block = transformers.StackedTransformer.config(
    num_layers=num_layers, hidden_dims=16, num_heads=2
  )
  return lm.set(stacked_transformer_tpl=block).set(**fields)


def _repeated(**fields):
  lm = _lm(**fields)
  block = lm.stacked_transformer_tpl
  lm.stacked_transformer_tpl = transformers.StackedTransformerRepeated.config(
    block=block, x_times=2
  )
  return lm


def _ids(seed=0, shape=(_B, _T)):
  return jnp.asarray(np.random.default_rng(seed).integers(_V, size=shape))


def _no_paddings(ids):
  return jnp.zeros(ids.shape)


def _labels(ids, weights=None):
  weights = jnp.ones(ids.shape) if weights is None else weights
  return NestedMap(class_ids=ids, class_weights=weights)


class _Run:
  """A model with random variables, compiled once a kind of argument."""

  def __init__(self, lm):
    self.layer = lm.Instantiate()
    ids = _ids()
    self.variables = random_variables(self.layer, ids, _no_paddings(ids))
    self._apply = running.jit(
      functools.partial(self.layer.apply, mutable=[base_layer.AUX_LOSS])
    )

  def __call__(self, ids, labels=None, paddings=None, **kwargs):
    paddings = _no_paddings(ids) if paddings is None else paddings
    return self._apply(self.variables, ids, paddings, labels, **kwargs)[0]


@functools.cache
def _causal():
  """The model that most tests look at."""
  return _Run(_lm())


def test_variable_tree():
  lm = _lm(
    num_layers=2,
    separate_embedding_tpl=es.Embedding.config(),
    softmax_tpl=es.FullSoftmax.config(),
    position_emb_tpl=es.TrainablePositionalEmbedding.config(max_seq_length=9),
  )
  tree = lm.Instantiate().abstract_init_with_metadata(
    _ids(), _no_paddings(_ids())
  )['params']
  assert set(tree) == {
    'embedding_lookup',
    'position_emb',
    'transformer',
    'final_ln',
    'softmax',
  }
  assert tree['embedding_lookup']['emb_var'].full_shape == (_V, _D)
  assert tree['softmax']['logits_ffn']['linear']['w'].full_shape == (_D, _V)
  assert set(tree['transformer']) == {'x_layers_0', 'x_layers_1'}


def test_repeated_variable_tree():
  tree = (
    _repeated()
    .Instantiate()
    .abstract_init_with_metadata(_ids(), _no_paddings(_ids()))['params']
  )
  layer = tree['transformer']['repeat']['sub']['x_layers_0']
  w = layer['ff_layer']['ffn_layer1']['linear']['w']
  assert w.full_shape == (2, _D, 16)


def test_losses():
  run, ids, labels = _causal(), _ids(), _ids(1)
  weights = jnp.asarray([[1.0, 1, 1, 1, 1, 1], [1, 1, 0.5, 0, 0, 0]])
  out = run(ids, _labels(labels, weights))
  logits = np.asarray(run(ids).logits, np.float64)
  log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  xent = -np.take_along_axis(log_probs, np.asarray(labels)[..., None], -1)
  weighted = xent[..., 0] * np.asarray(weights)
  np.testing.assert_allclose(out.per_token_xent, weighted, atol=1e-5)
  np.testing.assert_allclose(out.per_sequence_xent, weighted.sum(1), rtol=1e-5)
  np.testing.assert_allclose(out.total_loss, weighted.sum() / 8.5, rtol=1e-5)
  np.testing.assert_allclose(out.total_weight, 8.5)
  assert out.aux_loss == out.aux_loss_weight == 0


def test_without_labels_there_are_probabilities():
  out = _causal()(_ids())
  assert set(out) == {'logits', 'log_probs', 'probs'}
  np.testing.assert_allclose(out.probs.sum(-1), 1, rtol=1e-5)
  np.testing.assert_allclose(out.probs, np.exp(out.log_probs), rtol=1e-5)


def _changed(ids, column):
  return ids.at[:, column].add(1) % _V


def test_a_causal_model_sees_no_later_token():
  run, ids = _causal(), _ids()
  before, after = run(ids).logits, run(_changed(ids, 3)).logits
  np.testing.assert_array_equal(before[:, :3], after[:, :3])
  assert (before[:, 3:] != after[:, 3:]).any(-1).all()


def test_a_bidirectional_model_sees_all():
  run = _Run(_lm(model_type=LanguageModelType.BIDIRECTIONAL))
  before, after = run(_ids()).logits, run(_changed(_ids(), 3)).logits
  assert (before != after).any(-1).all()


def test_a_prefix_model_sees_its_prefix():
  run = _Run(_lm(model_type=LanguageModelType.PREFIX))
  causal = jnp.asarray([[0, 0, 0, 1, 1, 1]] * _B)
  before, in_prefix, after = (
    run(ids, causal_attention_mask=causal).logits
    for ids in (_ids(), _changed(_ids(), 2), _changed(_ids(), 4))
  )
  assert (before != in_prefix).any(-1).all()
  np.testing.assert_array_equal(before[:, :4], after[:, :4])


def test_packed_texts_are_as_alone():
  run = _Run(_lm(packed_input=True))
  first, second = _ids(0)[0, :4], _ids(1)[0, :2]
  ids = jnp.stack([
    jnp.concatenate([first, second]),
    jnp.pad(first, (0, 2)),
    jnp.pad(second, (0, 4)),
  ])  # fmt: skip
  logits = run(
    ids,
    segment_ids=jnp.asarray(
      [[1, 1, 1, 1, 2, 2], [1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0]]
    ),
    segment_pos=jnp.asarray(
      [[0, 1, 2, 3, 0, 1], [0, 1, 2, 3, 0, 0], [0, 1, 0, 0, 0, 0]]
    ),
  ).logits
  np.testing.assert_allclose(logits[0, :4], logits[1, :4], atol=1e-5)
  np.testing.assert_allclose(logits[0, 4:], logits[2, :2], atol=1e-5)


def test_padding_changes_nothing():
  run, ids = _causal(), _ids()
  paddings = jnp.asarray([[0.0, 0, 0, 0, 1, 1]] * _B)
  padded = run(ids, paddings=paddings).logits
  short = run(ids[:, :4]).logits
  np.testing.assert_allclose(padded[:, :4], short, atol=1e-5)


def test_activations_are_what_the_softmax_gets():
  recording = _Run(_lm(record_activations_in_xent_output=True))
  out = recording(_ids(), _labels(_ids(1)))
  skipping = _Run(_lm(skip_compute_loss=True))
  skipping.variables = recording.variables
  np.testing.assert_allclose(out.activations, skipping(_ids()), atol=1e-6)
  unlabelled = recording(_ids())
  np.testing.assert_array_equal(unlabelled.activations, out.activations)


@pytest.mark.parametrize('skip', [True, False])
def test_aux_losses_and_entropy_join_the_total(skip):
  lm = _lm(
    entropy_loss_weight=0.3,
    skip_aux_loss=skip,
    record_logits_in_xent_output=True,
  )
  lm.softmax_tpl.z_loss_weight = 0.1
  out = _Run(lm)(_ids(), _labels(_ids(1)))
  log_probs = np.asarray(out.log_probs, np.float64)
  entropy = -(np.exp(log_probs) * log_probs).sum(-1).mean()
  assert out.aux_loss == out.z_loss > 0
  assert out.aux_loss_weight == 1
  assert out.avg_entropy_loss == pytest.approx(-entropy)
  want = out.avg_xent - 0.3 * entropy + (0 if skip else out.z_loss)
  np.testing.assert_allclose(out.total_loss, want, rtol=1e-5)


def test_summaries_count_tokens():
  layer, variables = _causal().layer, _causal().variables
  paddings = jnp.asarray([[0.0, 0, 0, 0, 1, 1]] * _B)
  run = functools.partial(layer.apply, mutable=[base_layer.SUMMARIES])
  _, collected = running.jit(run)(variables, _ids(), paddings)
  summaries = collected[base_layer.SUMMARIES]
  assert summaries['num_unpadded_tokens_scalar'] == 8
  np.testing.assert_allclose(summaries['ratio_unpadded_tokens_scalar'], 4 / 6)


def _rotary(lm):
  lm.position_emb_tpl = None
  block = next(stack_configs.stacked_transformers(lm.stacked_transformer_tpl))
  layer = block.transformer_layer_params_tpl
  layer.tr_atten_tpl.set(use_rotary_position_emb=True, combine_qkv=True)
  return lm


def _grow(x, batch_dim, time_dim):
  """Makes room for _T columns in a cache of 2."""
  del batch_dim
  widths = [(0, _T - 2 if d == time_dim else 0) for d in range(x.ndim)]
  return jnp.pad(x, widths)


def _with_ngrams():
  """Of ids before the layers, and of clusters after the first attention."""
  heads = {'num_heads': 2, 'dim_per_head': _D // 2, 'ngram_emb_dim': 2}
  ids = ngrammer.Ngrammer.config(
    ngram_vocab_size=17, unigram_vocab_size=_V, **heads
  )
  clusters = ngrammer.VQNgrammer.config(
    ngram_vocab_size=17,
    unigram_vocab_size=3,
    num_clusters=3,
    concat_ngrams=True,
    **heads,
  )
  return _lm(2, ngrammer_tpl=ids, post_attention_ngrammer_tpls=[clusters, None])


def _with_layer_inputs(**fields):
  lm = _lm(
    num_layers=2,
    layer_inputs_tpl=transformer_models.LayerInputs.config(layer_input_dims=3),
    **fields,
  )
  layer = lm.stacked_transformer_tpl.transformer_layer_params_tpl
  layer.layer_input_tpl = transformers.LayerInputBranch.config(
    layer_input_dims=3
  )
  return lm


def test_inputs_of_layers_are_of_tokens_and_their_embeddings():
  config = transformer_models.LayerInputs.config(
    vocab_size=_V, model_dims=_D, num_layers=2, layer_input_dims=3
  )
  ids = _ids()
  embedded = jax.random.normal(jax.random.key(1), (*ids.shape, _D))
  layer, variables = running.build(config, ids, embedded)
  p = jax.tree.map(lambda a: np.asarray(a, np.float64), variables['params'])
  of_layers = lambda x: x.reshape(*ids.shape, 2, 3)
  projected = of_layers(np.asarray(embedded) @ p['proj']['w'] / _D**0.5)
  projected = numpy_layers.rms_norm(projected, p['ln']['scale'])
  of_tokens = of_layers(p['embedding']['emb_var'][np.asarray(ids)] * 3**0.5)
  want = (projected + of_tokens) / 2**0.5
  got = running.run(layer, variables, ids, embedded)
  np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize(
  'lm',
  [
    _rotary(_repeated()),
    _lm(position_emb_tpl=es.TrainablePositionalEmbedding.config()),
    _with_ngrams(),
    _with_layer_inputs(),
    *nightly.cases(_lm(2)),
  ],
  ids=['repeated rotary', 'trainable', 'ngrams', 'layer inputs', 'stacked'],
)
def test_steps_equal_the_whole(lm):
  run, ids = _Run(lm), _ids()
  want = run(ids).logits
  apply = functools.partial(run.layer.apply, mutable=[base_layer.DECODE_CACHE])

  def begin(lm, ids):
    lm(ids, _no_paddings(ids), start_time_step=2)
    lm.transform_decode_state(_grow)

  @running.jit
  def step(state, ids):
    return apply(run.variables | state, ids, method='extend_step')

  # Two tokens at once, then the others one by one.
  _, state = running.jit(lambda ids: apply(run.variables, ids, method=begin))(
    ids[:, :2]
  )
  for t in range(2, _T):
    out, state = step(state, ids[:, t])
    np.testing.assert_allclose(out.logits, want[:, t], atol=1e-5)


def test_several_steps_at_once():
  run, ids = _causal(), _ids()

  def both(lm, ids):
    lm(ids, _no_paddings(ids))
    return lm.extend_step(ids[:, :4])

  apply = functools.partial(run.layer.apply, mutable=[base_layer.DECODE_CACHE])
  out, state = running.jit(lambda ids: apply(run.variables, ids, method=both))(
    ids
  )
  np.testing.assert_allclose(out.logits, run(ids).logits[:, :4], atol=1e-5)
  assert state[base_layer.DECODE_CACHE]['time_step'] == 4


def test_decoding_steps_record_activations():
  run, ids = _Run(_lm(record_activations_in_xent_output=True)), _ids()

  def both(lm, ids):
    return lm(ids, _no_paddings(ids)), lm.extend_step(ids[:, :2])

  (want, out), _ = running.jit(
    lambda ids: run.layer.apply(
      run.variables, ids, method=both, mutable=[base_layer.DECODE_CACHE]
    )
  )(ids)
  np.testing.assert_allclose(
    out.activations, want.activations[:, :2], atol=1e-5
  )


def test_bfloat16_is_near_float32():
  args = (_ids(), _labels(_ids(1)))
  out = _Run(_lm(fprop_dtype=jnp.bfloat16))(*args)
  assert out.total_loss.dtype == jnp.float32
  np.testing.assert_allclose(
    out.total_loss, _causal()(*args).total_loss, rtol=0.03
  )


def test_without_final_norm():
  tree = (
    _lm(final_ln_tpl=None)
    .Instantiate()
    .abstract_init_with_metadata(_ids(), _no_paddings(_ids()))
  )
  assert 'final_ln' not in tree['params']


def _refuses(lm, message):
  with pytest.raises(ValueError, match=message):
    lm.Instantiate().abstract_init_with_metadata(_ids(), _no_paddings(_ids()))


def test_errors():
  _refuses(_lm(model_dims=0), 'needs model_dims > 0')
  lm = _lm()
  lm.stacked_transformer_tpl.model_dims = 4
  _refuses(lm, 'must be 0 or 8 .* got 4')
  lm = _lm(skip_aux_loss=True)
  lm.softmax_tpl.set(xent_implementation='auto', z_loss_weight=0.1)
  _refuses(lm, 'leaves out the z-loss')
  _refuses(
    _with_ngrams().set(post_attention_ngrammer_tpls=[None]),
    'ngrammer_tpls must have an entry for each of 2 layers',
  )
  lm = _lm(entropy_loss_weight=0.1)
  lm.softmax_tpl.set(chunk_size=2)
  _refuses(lm, 'needs the logits of all tokens')
  inputs = transformer_models.LayerInputs.config(layer_input_dims=3)
  _refuses(
    _repeated(layer_inputs_tpl=inputs),
    'must be a StackedTransformer with layer_inputs_tpl, .* in a loop',
  )
  mtp = transformer_models.MultiTokenPrediction.config()
  _refuses(
    _with_layer_inputs(mtp_tpl=mtp),
    'must be None with mtp_tpl, .* got LayerInputs',
  )


def test_a_bidirectional_model_has_no_steps():
  layer = _lm(model_type=LanguageModelType.BIDIRECTIONAL).Instantiate()
  with pytest.raises(ValueError, match='so it has no decoding'):
    layer.apply({}, _ids()[:, 0], method='extend_step')


@pytest.mark.parametrize(
  'fields, softmax, fuses',
  [
    ({}, {}, True),
    ({}, {'xent_implementation': 'xla'}, False),
    ({'record_logits_in_xent_output': True}, {}, False),
    ({'entropy_loss_weight': 0.1}, {}, False),
    ({'skip_aux_loss': True}, {'z_loss_weight': 0.1}, False),
    ({}, {'z_loss_weight': 0.1}, True),
  ],
)
def test_the_loss_is_fused_unless_logits_are_needed(
  monkeypatch, fields, softmax, fuses
):
  calls = []
  kernel = softmax_xent.softmax_xent
  monkeypatch.setattr(softmax_xent, 'prefers_native', lambda _: True)
  monkeypatch.setattr(
    softmax_xent, 'softmax_xent', lambda *args: calls.append(1) or kernel(*args)
  )
  lm = _lm(**fields)
  lm.softmax_tpl.set(**softmax)
  layer, ids = lm.Instantiate(), _ids()
  args = (ids, _no_paddings(ids), _labels(ids))
  variables = random_variables(layer, *args)
  out = jax.eval_shape(layer.apply, variables, *args)
  assert bool(calls) == fuses
  assert out.logits.shape == out.log_probs.shape == (*ids.shape, _V)


def test_logits_that_nothing_reads_cost_nothing(monkeypatch):
  """The compiled step computes and holds as much as without them."""
  lm = _lm()
  lm.softmax_tpl.xent_implementation = 'reference'
  layer, ids = lm.Instantiate(), _ids()
  args = (ids, _no_paddings(ids), _labels(ids))
  variables = random_variables(layer, *args)

  def costs(read):
    def loss(variables):
      out = layer.apply(variables, *args)
      return out.total_loss + (jnp.sum(out.logits**2) if read else 0.0)

    compiled = jax.jit(jax.value_and_grad(loss)).lower(variables).compile()
    memory = compiled.memory_analysis()
    return compiled.cost_analysis()['flops'], memory.temp_size_in_bytes

  unread = costs(read=False)
  assert costs(read=True)[0] > unread[0]
  monkeypatch.setattr(
    type(layer), '_record_activations_and_logits', lambda *_: None
  )
  assert costs(read=False) == unread
