# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Batches from TFRecord files: order, labels, augmentation, errors."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pax.files import tf_records
from pax.tasks.vision import input_generator
from tests.pax.tasks.vision import jpegs

_CLASSES = len(jpegs.COLORS)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  found = tmp_path_factory.mktemp('imagenet')
  jpegs.write(found, 'train', 12)
  jpegs.write(found, 'validation', 6)
  return found


def make(cls, folder, **kwargs):
  settings = {
    'data_dir': folder and str(folder),
    'batch_size': 4,
    'num_classes': _CLASSES,
    'data_shape': (16, 16, 3),
    'num_batcher_threads': 2,
    **kwargs,
  }
  return cls.config(**settings).Instantiate()


def train(folder, **kwargs):
  return make(input_generator.ImageNetTrain, folder, **kwargs)


def validation(folder, **kwargs):
  return make(input_generator.ImageNetValidation, folder, **kwargs)


def assert_same(left, right):
  assert sorted(left) == sorted(right)
  for name in left:
    np.testing.assert_array_equal(left[name], right[name])


def test_a_batch(folder):
  batch = train(folder).get_next()
  shapes = {name: x.shape for name, x in batch.items()}
  assert shapes == {
    'image': (4, 16, 16, 3),
    'label_probs': (4, _CLASSES),
    'weight': (4,),
    'eval_sample_weights': (4,),
  }
  assert {x.dtype for x in batch.values()} == {np.dtype(np.float32)}
  assert 0 <= batch.image.min() and 200 < batch.image.max() <= 255


def test_every_image_has_its_class(folder):
  source = train(folder)
  batches = [source.get_next() for _ in range(3)]
  labels = np.concatenate([b.label_probs for b in batches])
  np.testing.assert_array_equal(labels.sum(0), [3] * _CLASSES)
  colors = np.concatenate([b.image.mean((1, 2)) for b in batches])
  np.testing.assert_allclose(colors, labels @ jpegs.COLORS, atol=15)


def test_evaluation_fills_up_the_last_batch(folder):
  source = validation(folder)
  first, last = source.get_next(), source.get_next()
  with pytest.raises(StopIteration):
    source.get_next()
  np.testing.assert_array_equal(last.weight, [1, 1, 0, 0])
  np.testing.assert_array_equal(last.eval_sample_weights, last.weight)
  assert not last.image[2:].any() and not last.label_probs[2:].any()
  classes = np.concatenate([first.label_probs, last.label_probs[:2]]).argmax(1)
  assert sorted(classes) == [0, 0, 1, 1, 2, 3]
  source.reset()
  assert_same(source.get_next(), first)


def test_it_resumes_with_the_same_parts_of_images(folder):
  source = train(folder)
  source.get_next()
  state = json.loads(json.dumps(source.get_state()))
  wanted = source.get_next()
  again = train(folder)
  again.set_state(state)
  assert_same(again.get_next(), wanted)


def test_an_image_changes_from_epoch_to_epoch(folder):
  source = train(folder, batch_size=12)
  first, second = source.get_next(), source.get_next()
  assert first.label_probs.sum() == second.label_probs.sum() == 12
  found = {x.tobytes() for b in (first, second) for x in b.image}
  assert len(found) == 24


def test_hosts_share_a_batch(folder):
  whole = validation(folder).get_next()
  parts = [
    validation(folder, batch_size=2, num_infeed_hosts=2, infeed_host_index=i)
    for i in range(2)
  ]
  found = [part.get_next() for part in parts]
  for name in whole:
    joined = np.concatenate([part[name] for part in found])
    np.testing.assert_array_equal(joined, whole[name])


def test_one_image(folder):
  image = jpegs.colored(2)
  batch = validation(folder).ImageBytesToBatch(image)
  assert batch.image.shape == (1, 16, 16, 3)
  np.testing.assert_allclose(batch.image.mean((0, 1, 2)), [40, 40, 220], atol=9)


def test_params_are_the_config(folder):
  params = input_generator.ImageNetTrain.Params()
  assert (params.batch_size, params.is_training) == (128, True)
  params.set(data_dir=str(folder), batch_size=2, num_classes=_CLASSES)
  assert params.Instantiate().get_next().image.shape == (2, 224, 224, 3)


@pytest.mark.parametrize(
  ('settings', 'hint'),
  [
    ({'data_dir': None}, '--set DATA_DIR=/path/to/folder'),
    ({'file_pattern': 'test-*'}, 'no file matches'),
    ({'data_shape': (16, 20, 3)}, r'\(S, S, 3\)'),
  ],
)
def test_what_is_missing_is_told_at_once(folder, settings, hint):
  with pytest.raises(ValueError, match=hint):
    train(folder, **settings)


@pytest.mark.parametrize(
  ('features', 'hint'),
  [
    ({'image/encoded': [b'?'], 'image/class/label': [1]}, 'whole JPEG'),
    ({'image/encoded': [jpegs.colored(0)]}, 'image/class/label'),
    (
      {'image/encoded': [jpegs.colored(0)], 'image/class/label': [5]},
      'within 0 and 3, got 4',
    ),
  ],
)
def test_a_bad_record_is_named(tmp_path, features, hint):
  arrays = {
    name: np.array(x, 'O' if isinstance(x[0], bytes) else np.int64)
    for name, x in features.items()
  }
  with (tmp_path / 'train-0-of-1').open('wb') as file:
    tf_records.write(file, [tf_records.example(arrays)])
  with pytest.raises(ValueError, match=hint) as error:
    train(tmp_path).get_next()
  assert 'record 0 of' in str(error.value)


def test_a_damaged_record_is_named(tmp_path):
  path = tmp_path / 'train-0-of-1'
  with path.open('wb') as file:
    tf_records.write(file, [jpegs.record(0)])
  content = bytearray(path.read_bytes())
  # The checksum of the data.
  content[-1] ^= 1
  path.write_bytes(content)
  with pytest.raises(ValueError, match=f'record 0 of {path} is damaged'):
    train(tmp_path).get_next()


def test_files_without_records(tmp_path):
  (tmp_path / 'train-0-of-1').touch()
  with pytest.raises(ValueError, match='1 empty files such as'):
    train(tmp_path).get_next()


def test_the_folder_of_all_inputs(folder, monkeypatch):
  expected = train(folder).get_next()
  by_path = train(None, file_pattern=f'tfrecord:{folder}/train-*')
  assert_same(by_path.get_next(), expected)
  monkeypatch.setattr(input_generator, 'IMAGENET_DATA_DIR', f'{folder}/')
  assert_same(train(None).get_next(), expected)


def test_noise_is_the_same_for_ever():
  noise = input_generator.SyntheticImages.config(
    batch_size=2, num_classes=5, data_shape=(4, 4, 3), is_training=True
  ).Instantiate()
  first = noise.get_next()
  assert_same(first, noise.get_next())
  assert first.image.shape == (2, 4, 4, 3)
  np.testing.assert_array_equal(first.label_probs.sum(1), [1, 1])
  once = input_generator.SyntheticImages.config(batch_size=2).Instantiate()
  assert once.get_next().label_probs.shape == (2, 1000)
  with pytest.raises(StopIteration):
    once.get_next()
  once.reset()
  once.get_next()
