# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Images, audio, texts and histograms, as they are written."""

from __future__ import annotations

import io
import os
import wave

import jax.numpy as jnp
import matplotlib.image
import numpy as np
import PIL.Image
import pytest

from pax.summaries import media, tags, tensorboard
from praxis import base_layer
from tests.pax.summaries import event_files

SummaryType = base_layer.SummaryType


def written(tmp_path, **values):
  out = tensorboard.TensorBoardWriter(str(tmp_path))
  out.write(7, values)
  out.close()
  found = event_files.read(os.path.join(tmp_path, 'train'))
  assert {step for step, _ in found} <= {7}
  return {value.tag: value for _, value in found}


def decode(png):
  floats = matplotlib.image.imread(io.BytesIO(png), format='png')
  return np.round(floats * 255).astype(int)


def test_every_number_of_channels():
  for channels in (1, 2, 3, 4):
    image = np.arange(6 * channels, dtype=np.uint8).reshape(2, 3, channels)
    decoded = decode(media.png(image))
    if channels > 2:
      assert decoded.tolist() == image.tolist()
    elif channels == 1:
      assert decoded.tolist() == image[..., 0].tolist()
  with pytest.raises(ValueError, match='1 to 4 channels'):
    media.png(np.zeros((2, 3, 5), np.uint8))


def test_videos_are_pngs_that_move(tmp_path):
  """As Pillow reads them."""
  frames = np.random.default_rng(0).integers(0, 256, (2, 3, 4, 5, 3), np.uint8)
  found = written(tmp_path, x=media.Media(SummaryType.VIDEO, frames))
  assert list(found) == ['x/0', 'x/1']
  shown = found['x/1'].image
  assert (shown.height, shown.width, shown.colorspace) == (4, 5, 3)
  with PIL.Image.open(io.BytesIO(shown.encoded_image_string)) as film:
    assert film.n_frames == 3 and film.info['loop'] == 0
    for index, frame in enumerate(frames[1]):
      film.seek(index)
      assert film.info['duration'] == 100
      np.testing.assert_array_equal(np.asarray(film.convert('RGB')), frame)
  # A viewer that knows no films shows the first frame.
  assert decode(shown.encoded_image_string).tolist() == frames[1, 0].tolist()


def test_too_few_dimensions(tmp_path):
  with pytest.raises(ValueError, match='VIDEO must have at least 4 dimensions'):
    list(media.Media(SummaryType.VIDEO, np.zeros((2, 3, 3))).items())


def test_images_are_pngs_of_their_pixels(tmp_path):
  pixels = np.zeros((2, 4, 5, 3), np.float32)
  pixels[1, 2, 3] = [1.0, 0.5, 2.0]
  found = written(tmp_path, x=media.Media(SummaryType.IMAGE, pixels))
  assert list(found) == ['x/0', 'x/1']
  image = found['x/1'].image
  assert (image.height, image.width, image.colorspace) == (4, 5, 3)
  decoded = decode(image.encoded_image_string)
  assert decoded[2, 3].tolist() == [255, 128, 255]
  assert decoded.sum() == 255 + 128 + 255


def test_at_most_64_of_a_tag(tmp_path):
  pixels = np.zeros((3, 30, 2, 2, 1), np.uint8)
  found = written(tmp_path, x=media.Media(SummaryType.IMAGE, pixels))
  assert len(found) == 64


def test_audio_is_a_wav_of_its_samples(tmp_path):
  samples = np.array([[[0.0], [0.5], [-1.0], [3.0]]])
  found = written(tmp_path, a=media.Media(SummaryType.AUDIO, samples, 8000))
  audio = found['a/0'].audio
  assert (audio.sample_rate, audio.length_frames) == (8000, 4)
  with wave.open(io.BytesIO(audio.encoded_audio_string)) as f:
    frames = np.frombuffer(f.readframes(4), '<i2')
    assert f.getframerate() == 8000
  assert frames.tolist() == [0, 16383, -32767, 32767]


def test_texts(tmp_path):
  texts = np.array([b'one', b'two'])
  found = written(
    tmp_path,
    t=media.Media(SummaryType.TEXT, texts),
    s=media.Media(SummaryType.TEXT, 'whole'),
  )
  assert list(found) == ['t/0', 't/1', 's']
  assert found['t/1'].tensor.string_val[0] == b'two'
  assert found['s'].metadata.plugin_data.plugin_name == 'text'


def test_histograms_hold_all_numbers(tmp_path):
  numbers = np.array([[0.0, 1.0, 2.0], [4.0, np.nan, 4.0]])
  found = written(tmp_path, h=media.Media(SummaryType.HISTOGRAM, numbers))
  histogram = found['h'].histo
  assert (histogram.min, histogram.max, histogram.num) == (0, 4, 5)
  assert (histogram.sum, histogram.sum_squares) == (11, 37)
  assert sum(histogram.bucket) == 5
  assert len(histogram.bucket) == len(histogram.bucket_limit)
  assert histogram.bucket[-1] == 2


def test_media_of_a_step_by_tag():
  found = tags.media_of(
    {
      'lm/attention_image': jnp.zeros((2, 3, 1)),
      'lm/picture_aggregate_image': jnp.zeros((1, 2, 3, 1)),
      'lm/loss_scalar': 1.0,
      'lm/film_video': jnp.zeros((1, 2, 2, 3, 1)),
      'lm/weights_histogram': jnp.arange(3),
    }
  )
  names = [
    'lm/attention_image',
    'lm/picture_image',
    'lm/film_video',
    'lm/weights_histogram',
  ]
  assert list(found) == names
  assert found['lm/picture_image'].kind is SummaryType.IMAGE
  is_local = [isinstance(tag, tags.LocalTag) for tag in found]
  assert is_local == [True, False, True, True]


def test_those_of_several_batches_are_joined():
  one = media.Media(SummaryType.IMAGE, np.zeros((40, 2, 3, 1)))
  other = media.Media(SummaryType.IMAGE, np.ones((40, 2, 3, 1)))
  both = media.concatenate(one, other)
  assert both.value.shape == (64, 2, 3, 1)
  assert both.value[:40].sum() == 0 and both.value[40:].min() == 1
  short = media.Media(SummaryType.AUDIO, np.zeros((2, 5, 1)))
  long = media.Media(SummaryType.AUDIO, np.ones((9, 2)))
  both = media.concatenate(media.concatenate(short, long), short).on_host()
  shapes = [row.shape for _, row in both.items()]
  assert shapes == [(5, 1), (5, 1), (9, 2), (5, 1), (5, 1)]
  numbers = media.Media(SummaryType.HISTOGRAM, np.arange(50.0))
  assert media.concatenate(numbers, numbers).value.shape == (100,)


@pytest.mark.parametrize('kind', [SummaryType.IMAGE, SummaryType.HISTOGRAM])
def test_values_come_from_devices(kind):
  value = media.Media(kind, jnp.ones((1, 2, 2, 3))).on_host()
  assert isinstance(value.value, np.ndarray)
