# SPDX-License-Identifier: Apache-2.0
# bazel: deps=@pypi_seqio//lingvo
# bazel: data=//:all_files
"""Lingvo's input generators in the adaptors of praxis."""

from __future__ import annotations

import warnings

import jax
import numpy as np
import pytest

from praxis import base_input, lingvo_lib, pax_fiddle, py_utils
from tests.docs import pages

pytest.importorskip('lingvo')
with warnings.catch_warnings():
  # Lingvo's modules have deprecated escapes.
  warnings.simplefilter('ignore')
  base_input_generator = lingvo_lib.import_lingvo('base_input_generator')
  cluster = lingvo_lib.import_lingvo('cluster')
  generic_input = lingvo_lib.import_lingvo('generic_input')
  lingvo_py_utils = lingvo_lib.import_lingvo('py_utils')
tf = base_input.tf

pytestmark = pytest.mark.filterwarnings('ignore')
NestedMap = py_utils.NestedMap


def _numbers(num: int, batch: int = 1, text: bool = False) -> tf.data.Dataset:
  dataset = tf.data.Dataset.range(num).batch(batch)
  if text:
    return dataset.map(lambda i: {'data': i, 'text': tf.strings.as_string(i)})
  return dataset.map(lambda i: {'data': i, 'a': {'b': 2 * i}})


NumbersInput = base_input_generator.DefineTFDataInput('NumbersInput', _numbers)


def _own_rows() -> tf.data.Dataset:
  context = cluster.GetInfeedContext()
  dataset = tf.data.Dataset.range(10)
  return (
    dataset.shard(context.num_infeed_hosts, context.infeed_host_index)
    .batch(1)
    .map(lambda i: {'data': i})
  )


ShardedInput = base_input_generator.DefineTFDataInput('ShardedInput', _own_rows)


class _Seeded(base_input_generator.BaseInputGenerator):
  """Has a seed."""

  @classmethod
  def Params(cls):
    params = super().Params()
    params.Define('file_random_seed', 0, 'Seed of the order.')
    return params


def _seeds(seed: int) -> tf.data.Dataset:
  return tf.data.Dataset.from_tensors({'seed': [seed]})


SeededInput = base_input_generator.DefineTFDataInput(
  'SeededInput',
  _seeds,
  map_args={'seed': 'file_random_seed'},
  base_class=_Seeded,
)


class CountingInput(base_input_generator.BaseInputGenerator):
  """Computes its batches in a graph, without tf.data."""

  def __init__(self, params):
    super().__init__(params)
    self._count = tf.Variable(0)

  def _InputBatch(self):
    count = self._count.assign_add(1)
    first = (count - 1) * self.params.batch_size
    return lingvo_py_utils.NestedMap(
      data=first + tf.range(self.params.batch_size),
      is_eval=tf.fill([self.params.batch_size], self.cluster.do_eval),
    )

  def IdsToStrings(self, ids, lens, key=None):
    rows = zip(np.asarray(ids), np.asarray(lens), strict=True)
    texts = [bytes(row[:length].tolist()) for row, length in rows]
    return tf.constant([text + (key or '').encode() for text in texts])


class LinesInput(base_input_generator.TFDataSequenceInputGenerator):
  """The bytes of each line of a file, in batches of similar lengths."""

  def LoadDataset(self, file_pattern):
    return tf.data.TextLineDataset(file_pattern)

  def ProcessDataset(self, dataset):
    def process(line):
      ids = tf.io.decode_raw(line, tf.uint8)
      return lingvo_py_utils.NestedMap(
        ids=tf.cast(ids, tf.int32), ids_paddings=tf.zeros(tf.shape(ids))
      )

    return dataset.map(process)

  def GetSequenceLength(self, example):
    return tf.size(example.ids)

  def _InputShape(self, key):
    return (None,) if key.startswith('ids') else super()._InputShape(key)


class RecordsInput(base_input_generator.BaseInputGeneratorFromFiles):
  """Reads by Lingvo's compiled operation."""

  def _DataSourceFromFilePattern(self, file_pattern, **kwargs):
    del kwargs
    batch, _ = generic_input.GenericInput(
      processor=lambda source_id, record: (
        lingvo_py_utils.NestedMap(num=tf.strings.to_number(record)),
        1,
      ),
      file_pattern=file_pattern,
      bucket_upper_bound=[10],
      bucket_batch_limit=[2],
    )
    return batch


def numbers_params(num, batch=1, **args):
  params = NumbersInput.Params()
  params.args.Set(num=num, batch=batch, **args)
  return params


def adaptor(params, cls=base_input.LingvoInputAdaptor, **fields):
  return pax_fiddle.Config(cls, input=params, **fields).Instantiate()


def data(inp, count=10**6):
  """Rows of up to `count` batches, and whether the data ended."""
  rows = []
  for _ in range(count):
    try:
      batch = inp.get_next()
    except base_input.end_of_data_errors():
      return rows, True
    rows.append(batch.data.tolist())
  return rows, False


def test_batches_are_numpy_in_our_maps():
  batch = adaptor(numbers_params(6, 3), is_training=True).get_next()
  assert type(batch) is NestedMap and type(batch.a) is NestedMap
  jax.tree.map(
    np.testing.assert_array_equal,
    batch,
    NestedMap(
      data=np.arange(3),
      a=NestedMap(b=2 * np.arange(3)),
      eval_sample_weights=np.ones(3, np.float32),
    ),
  )
  assert batch.eval_sample_weights.dtype == np.float32


@pytest.mark.parametrize(
  ('fields', 'ends'),
  [
    ({'is_training': True, 'cluster_do_eval': True}, False),
    ({'is_training': False, 'cluster_do_eval': True}, True),
    ({'is_training': False, 'cluster_do_eval': False}, False),
  ],
)
def test_data_end_with_do_eval_only(fields, ends):
  inp = adaptor(numbers_params(3), **fields)
  rows, ended = data(inp, 7)
  assert ended == ends
  assert rows == [[i % 3] for i in range(3 if ends else 7)]
  inp.reset()
  assert data(inp, 1)[0] == [[0]]


def test_num_batches_ends_the_data():
  inp = adaptor(numbers_params(3), num_batches=4)
  assert data(inp) == ([[0], [1], [2], [0]], True)
  with pytest.raises(
    tf.errors.OutOfRangeError, match='num_batches exceeding 4'
  ):
    inp.get_next()
  inp.reset()
  assert len(data(inp)[0]) == 4


def test_a_generator_that_computes_in_a_graph():
  params = CountingInput.Params().Set(batch_size=2)
  inp = adaptor(params, num_batches=3, cluster_do_eval=True)
  assert inp.get_batch_size(inp) == 2
  for _ in range(2):
    assert data(inp) == ([[0, 1], [2, 3], [4, 5]], True)
    inp.reset()
  assert inp.get_next().is_eval.all()
  assert not adaptor(params).get_next().is_eval.any()


def test_hosts_find_their_index_in_the_infeed_context():
  rows = [
    data(
      adaptor(
        ShardedInput.Params(),
        num_infeed_hosts=3,
        infeed_host_index=host,
        cluster_do_eval=True,
      )
    )[0]
    for host in range(3)
  ]
  assert rows == [[[0], [3], [6], [9]], [[1], [4], [7]], [[2], [5], [8]]]
  # The scope ends with the call.
  assert cluster.GetInfeedContext().num_infeed_hosts == 1
  with py_utils.infeed_context_scope(1, 2):
    assert cluster.GetInfeedContext().infeed_host_index == 1
  assert not py_utils.current_cluster().do_eval


def test_each_host_has_a_seed_of_its_own():
  params = SeededInput.Params().Set(file_random_seed=7)
  with pytest.raises(ValueError, match='file_random_seed = 0'):
    adaptor(params)
  fields = {'allow_fixed_file_random_seed': True, 'num_infeed_hosts': 3}
  for host in range(3):
    inp = adaptor(params, infeed_host_index=host, **fields)
    assert inp.get_next().seed == [7 + host]
    inp.reset()
    assert inp.get_next().seed == [7 + host]
  # Seed 0 is random for all; the params do not change.
  assert params.file_random_seed == 7
  params.file_random_seed = 0
  assert adaptor(params, infeed_host_index=2, **fields).get_next().seed == [0]


def test_evaluations_of_all_hosts_have_the_same_seed():
  inputs = [
    adaptor(
      SeededInput.Params().Set(file_random_seed=7),
      base_input.LingvoEvalAdaptor,
      allow_fixed_file_random_seed=True,
      num_infeed_hosts=2,
      infeed_host_index=host,
      batch_size=1,
      num_batches=2,
      reset_for_eval=True,
    )
    for host in range(2)
  ]
  assert [inp.get_next().seed.tolist() for inp in inputs] == [[7], [7]]


@pytest.mark.parametrize(
  ('fields', 'has_text'),
  [
    ({'is_training': True}, False),
    ({'is_training': False}, True),
    ({'is_training': False, 'num_infeed_hosts': 2}, False),
  ],
)
def test_strings_are_for_evaluations_of_one_host(fields, has_text):
  batch = adaptor(numbers_params(2, 2, text=True), **fields).get_next()
  assert ('text' in batch) == has_text
  if has_text:
    assert batch.text.tolist() == [b'0', b'1']


def test_ids_to_strings():
  inp = adaptor(CountingInput.Params().Set(batch_size=1))
  ids = np.array([[104, 105, 0], [97, 98, 99]])
  assert inp.ids_to_strings(ids, np.array([2, 3])) == ['hi', 'abc']
  assert inp.ids_to_strings(ids, np.array([0, 1]), key='!') == ['!', 'a!']


def test_sequences_of_a_file(tmp_path):
  (tmp_path / 'lines').write_text('abc\nde\nfghi\nj\n')
  params = LinesInput.Params().Set(
    file_pattern=str(tmp_path / 'lines'),
    file_random_seed=0,
    bucket_upper_bound=[2, 4],
    bucket_batch_limit=[2, 2],
  )
  inp = adaptor(params, cluster_do_eval=True)
  assert inp.get_batch_size(inp) == 2
  batches = [inp.get_next() for _ in range(2)]
  with pytest.raises(tf.errors.OutOfRangeError):
    inp.get_next()
  texts = [
    [
      bytes(row[pad == 0].tolist())
      for row, pad in zip(b.ids, b.ids_paddings, strict=True)
    ]
    for b in batches
  ]
  assert sorted(texts) == [[b'abc', b'fghi'], [b'de', b'j']]


def test_batches_are_cut():
  fields = {'cls': base_input.LingvoInputAdaptorNewBatchSize}
  inp = adaptor(numbers_params(8, 4), batch_size=2, num_batches=2, **fields)
  assert inp.get_batch_size(inp) == 2
  expected = [[0, 1], [2, 3], [4, 5], [6, 7]], True
  assert data(inp) == expected
  inp.reset()
  assert data(inp) == expected
  with pytest.raises(ValueError, match='4, must be a multiple of .* = 3'):
    adaptor(numbers_params(8, 4), batch_size=3, **fields)
  with pytest.raises(ValueError, match='batch_size .* is not set'):
    adaptor(numbers_params(8, 4), **fields)


def eval_adaptors(num, hosts, batch_size, **fields):
  return [
    adaptor(
      numbers_params(num),
      base_input.LingvoEvalAdaptor,
      batch_size=batch_size,
      num_infeed_hosts=hosts,
      infeed_host_index=host,
      cluster_do_eval=True,
      reset_for_eval=True,
      **fields,
    )
    for host in range(hosts)
  ]


@pytest.mark.parametrize(
  ('num', 'hosts', 'size'), [(11, 3, 3), (12, 2, 3), (1, 4, 2), (5, 1, 4)]
)
def test_an_epoch_is_padded_for_all_hosts(num, hosts, size):
  inputs = eval_adaptors(num, hosts, size)
  num_batches = -(-num // (hosts * size))
  for _ in range(2):
    rows, weights = [], []
    for _ in range(num_batches):
      for inp in inputs:
        batch = inp.get_next()
        rows += batch.data.tolist()
        weights += batch.eval_sample_weights.tolist()
    padding = num_batches * hosts * size - num
    assert rows == [*range(num)] + [0] * padding
    assert weights == [1.0] * num + [0.0] * padding
    for inp in inputs:
      with pytest.raises(StopIteration):
        inp.get_next()
      assert inp.num_samples == num
      inp.reset()


def test_evaluations_need_epochs_that_end():
  (inp,) = eval_adaptors(3, 1, 2)
  config = inp.hparams.clone()
  with pytest.raises(ValueError, match='cluster_do_eval = True'):
    config.clone().set(cluster_do_eval=False).Instantiate()
  for wrong in ({'is_training': True}, {'reset_for_eval': False}):
    with pytest.raises(ValueError, match='requires is_training=False'):
      config.clone().set(**wrong).Instantiate()
  with pytest.raises(ValueError, match='no examples'):
    eval_adaptors(0, 1, 2)


def lazy_adaptors(num, hosts, size, **fields):
  params = CountingInput.Params().Set(batch_size=size, num_samples=num)
  return [
    adaptor(
      params,
      base_input.LingvoLazyEvalAdaptor,
      num_infeed_hosts=hosts,
      infeed_host_index=host,
      reset_for_eval=True,
      **fields,
    )
    for host in range(hosts)
  ]


@pytest.mark.parametrize(
  ('num', 'hosts', 'size', 'samples'),
  [(13, 3, 3, [6, 4, 3]), (12, 2, 3, [6, 6]), (1, 3, 2, [1, 0, 0])],
)
def test_an_epoch_is_read_lazily(num, hosts, size, samples):
  inputs = lazy_adaptors(num, hosts, size)
  assert [inp.num_samples for inp in inputs] == samples
  num_batches = -(-num // (hosts * size))
  for _ in range(2):
    valid = []
    for _ in range(num_batches):
      for inp in inputs:
        batch = inp.get_next()
        valid += batch.data[batch.eval_sample_weights == 1].tolist()
    assert valid == [*range(num)]
    for inp in inputs:
      assert inp.computed_num_batches == num_batches
      with pytest.raises(
        tf.errors.OutOfRangeError, match='have been exhausted'
      ):
        inp.get_next()
      inp.reset()


def test_fewer_batches_of_a_lazy_epoch():
  for limit, expected in ((1, 1), (0, 2), (9, 2), (None, 2)):
    (inp, _, _) = lazy_adaptors(13, 3, 3, num_batches=limit)
    assert inp.computed_num_batches == expected
    assert inp.batch_size == 3
  with pytest.raises(ValueError, match=r'input.batch_size .* must be positive'):
    lazy_adaptors(13, 1, 0)


def test_inputs_of_several_generators():
  inp = base_input.MultiInput.config(
    input_to_params={
      'x': pax_fiddle.Config(
        base_input.LingvoInputAdaptor,
        input=CountingInput.Params().Set(batch_size=2),
      ),
      'y': pax_fiddle.Config(
        base_input.LingvoInputAdaptor,
        input=CountingInput.Params().Set(batch_size=4),
      ),
    },
    default_input='y',
  ).Instantiate()
  batch = inp.get_next()
  assert batch.x.data.tolist() == [[0], [1]]
  assert batch.y.data.tolist() == [[0, 1], [2, 3]]
  assert inp.ids_to_strings(np.array([[104]]), np.array([1])) == ['h']


class Postprocessed(base_input.LingvoInputAdaptor):
  """The example of Pax's README."""

  def get_next(self):
    batch = super().get_next()
    batch.new_field = batch.data + 1
    return batch


def test_a_subclass_changes_the_batches():
  inp = adaptor(numbers_params(3), Postprocessed, is_training=True)
  assert inp.get_next_padded().new_field.tolist() == [1]
  # Generators have no state.
  assert inp.peek_padded().new_field.tolist() == [2]
  with pytest.raises(NotImplementedError, match='peeked batch is unknown'):
    inp.get_state()
  assert inp.get_next_padded().new_field.tolist() == [2]
  with pytest.raises(NotImplementedError, match='not resumable'):
    inp.get_state()


def test_the_documented_inputs():
  (block,) = (b for b in pages.blocks('py') if 'from lingvo' in b.text)
  scope = {'make_tf_dataset': lambda: _numbers(20, 4)}
  exec(compile(block.text, block.page, 'exec'), scope)
  batch = scope['train_p'].Instantiate().get_next()
  np.testing.assert_array_equal(batch.data, np.arange(4))
  np.testing.assert_array_equal(batch.weights, np.ones(4))
  batches, ended = data(scope['eval_p'].Instantiate())
  assert ended
  assert [len(rows) for rows in batches] == [8, 8, 8]
  # Padded rows are zeros.
  assert np.concatenate(batches).tolist() == [*range(20), *[0] * 4]


def test_params_as_text():
  params = numbers_params(7, 3, text=True)
  assert lingvo_lib.is_params(params) and not lingvo_lib.is_params('text')
  text = params.ToTextWithTypes()
  assert lingvo_lib.params_from_text(NumbersInput, text) == params


def test_settings_that_are_refused():
  with pytest.raises(
    ValueError, match='input of LingvoInputAdaptor is not set'
  ):
    adaptor(None)
  with pytest.raises(ValueError, match=r'does not support self\.batch_size'):
    adaptor(numbers_params(3), batch_size=2)


def test_compiled_operations_name_what_they_miss(tmp_path):
  ops = lingvo_lib.import_lingvo('ops')
  if not isinstance(ops.gen_x_ops, lingvo_lib.UnavailableOps):
    pytest.skip("Lingvo's compiled operations load here")
  path = tmp_path / 'records'
  with tf.io.TFRecordWriter(str(path)) as writer:
    writer.write(b'1')
  params = RecordsInput.Params().Set(
    file_pattern=f'tfrecord:{path}', file_random_seed=0
  )
  inp = adaptor(params)
  with pytest.raises(
    NotImplementedError, match=r"'generic_input' of Lingvo is .*x_ops\.so"
  ):
    inp.get_next()
