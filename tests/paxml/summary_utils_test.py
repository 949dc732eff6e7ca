# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Event files written through paxml.summary_utils."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paxml import summary_utils
from praxis import base_layer
from tests.pax.summaries import event_files

SummaryType = base_layer.SummaryType


@dataclasses.dataclass
class State:
  mdl_vars: Any = None
  opt_states: Any = None


@dataclasses.dataclass
class Sum:
  """A metric in the way of clu."""

  value: float

  def merge(self, other):
    return Sum(self.value + other.value)

  def compute(self):
    return self.value


def scalars(folder) -> dict[tuple[int, str], float]:
  found = event_files.read(str(folder))
  return {(step, v.tag): v.simple_value for step, v in found}


def test_an_entry_is_the_weighted_mean_of_its_steps(tmp_path):
  with summary_utils.get_summary_writer(tmp_path / 'train') as writer:
    summary_utils.write_summary_entry(
      writer,
      8,
      np.array([1.0, 3.0]),
      {'acc': [(0.5, 1.0), (1.0, 3.0)]},
      {'sum': Sum(4.0)},
      {'lm': {'/x_scalar': [2.0, 4.0]}, 'y_aggregate_scalar': 5.0},
      steps_per_sec=0.25,
    )
  assert scalars(tmp_path / 'train') == {
    (8, 'loss'): 2.0,
    (8, 'Steps/sec'): 0.25,
    (8, 'Metrics/acc'): 0.875,
    (8, 'Metrics/acc-weight'): 4.0,
    (8, 'Metrics/sum'): 4.0,
    (8, 'lm/x_scalar'): 3.0,
    (8, 'y_scalar'): 5.0,
  }


def test_weighted_scalars_of_all_devices(tmp_path):
  with summary_utils.get_summary_writer(tmp_path / 'train') as writer:
    acc = [
      (np.array([0.5, 1.0]), np.array([1.0, 3.0])),
      (np.ones(2), np.ones(2)),
    ]
    summary_utils.write_summary_entry(writer, 8, 1.0, {'acc': acc}, None, {})
  written = scalars(tmp_path / 'train')
  assert written[8, 'Metrics/acc'] == pytest.approx(5.5 / 6)
  assert written[8, 'Metrics/acc-weight'] == 6.0


def test_tensors_of_several_steps(tmp_path):
  write = summary_utils.write_summary_tensor
  with summary_utils.get_summary_writer(tmp_path / 'd') as writer:
    with writer.as_default():
      images = [np.full((40, 2, 2, 1), v, np.float32) for v in (0.0, 1.0)]
      assert write(1, 'i', images, SummaryType.IMAGE)
      write(1, 'h', [np.arange(3.0), np.arange(2.0)], SummaryType.HISTOGRAM)
      with pytest.raises(ValueError, match='at least 4 dimensions'):
        write(1, 'v', 0, SummaryType.VIDEO)
  assert not write(1, 'nowhere', 1.0, SummaryType.SCALAR)
  found = {v.tag: v for _, v in event_files.read(str(tmp_path / 'd'))}
  assert len(found) == 65 and found['h'].histo.num == 5
  # The latest come first.
  white = found['i/0'].image.encoded_image_string
  assert white == found['i/39'].image.encoded_image_string
  assert white != found['i/40'].image.encoded_image_string


def test_texts_about_a_model(tmp_path):
  state = State(
    mdl_vars={'params': {'w': np.zeros((2, 3))}}, opt_states=[{'m': 'random'}]
  )
  with summary_utils.get_summary_writer(str(tmp_path / 't')) as writer:
    summary_utils.write_model_structure(writer, state, False)
    summary_utils.write_total_num_params(writer, 1234567)
    summary_utils.write_global_batch_size(writer, 1024)
    provenance = State(mdl_vars={'w': 'random'}, opt_states=[{'m': 'random'}])
    summary_utils.write_model_provenance(writer, provenance)
  found = {
    v.tag: v.tensor.string_val[0].decode()
    for _, v in event_files.read(str(tmp_path / 't'))
  }
  assert found['Model'].split() == ['params:', 'w:', "'2x3'"]
  assert found['Total Num Params'] == '1 234 567'
  assert found['Global batch size'] == '1 024'
  assert found['Model vars provenance'] == "    w: 'random'"
  assert 'm:' in found['Opt states provenance']


def test_a_disabled_writer_writes_nothing(tmp_path):
  with summary_utils.get_summary_writer(tmp_path / 'n', False) as writer:
    writer.write(0, {'x': 1.0})
  assert not os.path.exists(tmp_path / 'n')


@pytest.mark.parametrize('is_async', [False, True])
def test_a_handler_averages_the_steps_in_between(tmp_path, is_async):
  with summary_utils.get_summary_writer(tmp_path / 'a') as writer:
    handler = summary_utils.SummaryHandler(
      writer, 4, accumulate_interval_steps=2, is_async=is_async
    )
    wrote = [
      handler.process(
        step,
        jnp.float32(step),
        {'m': (jnp.float32(step), 1.0)},
        {'t_scalar': float(step)},
        steps_per_sec=2.0,
        clu_metrics={'s': Sum(1.0)},
      )
      for step in range(1, 9)
    ]
    handler.close()
  assert wrote == [step % 4 == 0 for step in range(1, 9)]
  found = scalars(tmp_path / 'a')
  assert found[4, 'loss'] == 3.0 and found[8, 'loss'] == 7.0
  assert found[8, 'Metrics/m'] == 7.0 and found[8, 'Metrics/m-weight'] == 2.0
  assert found[8, 't_scalar'] == 7.0 and found[8, 'Metrics/s'] == 2.0


def test_a_handler_without_averages_takes_the_step_itself(tmp_path):
  with summary_utils.get_summary_writer(tmp_path / 'a') as writer:
    handler = summary_utils.SummaryHandler(writer, 3, log_interval_steps=5)
    for step in range(1, 4):
      handler.process(step, step, None, {})
    assert handler.should_log(5) and not handler.should_log(4)
  assert scalars(tmp_path / 'a') == {(3, 'loss'): 3.0}


def test_a_thread_raises_its_error_when_it_is_closed():
  class FullDisk(summary_utils.SummaryWriter):
    def write(self, step, values):
      raise OSError('no space left on device')

  handler = summary_utils.SummaryHandler(FullDisk(None), 1, is_async=True)
  handler.process(1, 1.0, None, {})
  with pytest.raises(OSError, match='no space left'):
    handler.close()


def test_another_writer_is_refused():
  with pytest.raises(ValueError, match='got NoneType'):
    summary_utils.SummaryHandler(None, 1)


def test_l2_mean_is_the_root_of_the_mean_square():
  tree = {'a': {'b': jnp.array([3.0, 4.0]), 'c': jnp.zeros(2)}, 'd': [1e30]}
  tree = jax.tree.map(jnp.asarray, tree)
  found = summary_utils.l2_mean(tree, prefix='p', max_level=1)
  assert found.keys() == {'p/a', 'p/d'}
  assert float(found['p/a']) == pytest.approx((25 / 4) ** 0.5)
  assert summary_utils.l2_mean(tree, max_level=2).keys() == {
    'a/b', 'a/c', 'd/0',
  }  # fmt: skip


def test_keys():
  flat = summary_utils.flatten_flax_summaries(
    {'lm': {'x_scalar': 1, 'y_scalar': [2, 3]}}
  )
  assert flat == {'lm/x_scalar': 1, 'lm/y_0_scalar': 2, 'lm/y_1_scalar': 3}
  nested = {'a': {'b': 1}, 'c': 2}
  assert summary_utils.flatten_summary_dict(nested) == [('ab', 1), ('c', 2)]
  name = summary_utils.get_summary_display_name_from_key
  assert name('lm/x_aggregate_scalar') == 'lm/x_scalar'
  images = {'x_image': [np.zeros((8, 4, 2, 2, 3))] * 2}
  assert summary_utils.should_cap_summary(images, 'x_image')
  images['x_image'].pop()
  assert not summary_utils.should_cap_summary(images, 'x_image')
  assert not summary_utils.should_cap_summary({'y_scalar': [1]}, 'y_scalar')


def test_pretty_texts():
  tree = {'a': [1, {}], 'b': ()}
  assert summary_utils.pretty_repr(tree) == (
    '{\n    a: [\n        1,\n        {},\n    ],\n    b: [],\n}'
  )
  text = summary_utils.pretty_repr_shapes(
    {'w': np.zeros((8, 2, 3), np.int8)}, True, with_dtype=True
  )
  assert text == "    w: '2x3 int8'"


class Scalar:
  def __init__(self, value):
    self.value = value


class Text:
  def __init__(self, textdata):
    self.textdata = textdata


class Computed:
  def compute_value(self):
    return [Scalar(1.0), Scalar(2.0)]


def test_metrics_of_clu_and_seqio(tmp_path):
  with summary_utils.get_summary_writer(tmp_path / 'm') as writer:
    with writer.as_default():
      summary_utils.compute_and_write_clu_metric_summaries(
        {'x': Computed()}, 3, 'p/'
      )
      summary_utils.write_clu_metric_summaries({'y': Scalar(4.0)}, 3)
      summary_utils.write_seqio_metric_summaries(
        [{'bleu': 0.5, 't': Text(b'words')}], 'eval', 3
      )
      with pytest.raises(ValueError, match='must be one of Scalar'):
        summary_utils.write_clu_metric_summaries({'z': object()}, 3)
  found = scalars(tmp_path / 'm')
  assert found.pop((3, 'eval/t')) == 0.0
  assert found == {
    (3, 'p/x_0'): 1.0, (3, 'p/x_1'): 2.0, (3, 'Metrics/y'): 4.0,
    (3, 'eval/bleu'): 0.5,
  }  # fmt: skip


class Histogram:
  values, bins = np.arange(8.0), 4


class Image:
  image, max_outputs = np.zeros((5, 2, 2, 3), np.uint8), 2


class Metadata:
  def SerializeToString(self):  # noqa: N802
    return b''


class Generic:
  tensor, metadata = np.array([[1, 2]], np.int32), Metadata()


def test_media_of_seqio(tmp_path):
  metrics = {'h': Histogram(), 'i': Image(), 'g': Generic()}
  with summary_utils.get_summary_writer(tmp_path / 'm') as writer:
    with writer.as_default():
      summary_utils.write_seqio_metric_summaries([metrics], 'eval', 3)
      with pytest.raises(ValueError, match="'eval/z' must be a number"):
        summary_utils.write_seqio_metric_summaries([{'z': 'x'}], 'eval', 3)
  found = {v.tag: v for _, v in event_files.read(str(tmp_path / 'm'))}
  assert found.keys() == {'eval/h', 'eval/i/0', 'eval/i/1', 'eval/g'}
  assert list(found['eval/h'].histo.bucket) == [2, 2, 2, 2]
  content = found['eval/g'].tensor.tensor_content
  assert np.frombuffer(content, np.int32).tolist() == [1, 2]


def test_summaries_of_all_replicas():
  def on_each(x, images):
    return summary_utils.aggregate_per_replica_summaries(
      {'x_scalar': x, 'i_image': images, 'h_histogram': x}
    )

  out = jax.vmap(on_each, axis_name=base_layer.PMAP_PARALLEL_AXIS_NAME)(
    jnp.array([1.0, 3.0]), jnp.arange(80.0).reshape(2, 40, 1, 1, 1)
  )
  assert out['x_scalar'].tolist() == [2.0, 2.0]
  assert out['i_image'].shape == (2, 64, 1, 1, 1)
  assert out['i_image'][0, :, 0, 0, 0].tolist() == list(range(64))
  assert out['h_histogram'].tolist() == [1.0, 3.0]
