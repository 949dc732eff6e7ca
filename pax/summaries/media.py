# SPDX-License-Identifier: Apache-2.0
"""Summaries that are no scalars: images, audio, texts, histograms."""

from __future__ import annotations

import dataclasses
import io
import struct
import wave
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from praxis import base_layer

SummaryType = base_layer.SummaryType

# So many of a tag are written; more is nothing that people look at.
MAX_PER_TAG = 64
# Hertz, where a layer only gives samples.
AUDIO_SAMPLE_RATE = 44_000

_INT16_MAX = 2**15 - 1
_PNG_MAGIC = b'\x89PNG\r\n\x1a\n'
# PNG's number for grey, grey and alpha, red green blue, those and alpha.
_PNG_COLORS = {1: 0, 2: 4, 3: 2, 4: 6}


@dataclasses.dataclass(frozen=True)
class Media:
  """A value to be looked at; maybe still on its way from a device."""

  # IMAGE: [..., height, width, channels]. AUDIO: [..., samples, channels].
  # TEXT: a string, or an array of them. HISTOGRAM: numbers of any shape.
  kind: SummaryType
  value: Any
  sample_rate: int = AUDIO_SAMPLE_RATE

  def on_host(self) -> Media:
    """The same with its value fetched."""
    if isinstance(self.value, str):
      return self
    return dataclasses.replace(self, value=np.asarray(self.value))

  def items(self) -> Iterator[tuple[str, Any]]:
    """(suffix of the tag, value) of each that is written, 64 at most.

    Images are uint8 [height, width, channels], audio float [samples, channels].
    """
    if self.kind is SummaryType.HISTOGRAM:
      yield '', np.asarray(self.value, np.float64).ravel()
    elif isinstance(self.value, str):
      yield '', self.value
    else:
      for i, row in enumerate(self._rows()[:MAX_PER_TAG]):
        yield f'/{i}', row

  def _rows(self) -> list[Any]:
    value = np.asarray(self.value)
    if self.kind is SummaryType.IMAGE:
      return [_uint8(x) for x in value.reshape(-1, *value.shape[-3:])]
    if self.kind is SummaryType.AUDIO:
      return list(value.reshape(-1, *value.shape[-2:]))
    return [_string(x) for x in value.ravel()]


def of_tensors(tensors: Mapping[str, Any]) -> dict[str, Media]:
  """The media among summaries by tag; their keys say their types.

  A video has no format that TensorBoard shows by itself, and is left out.
  """
  found = {}
  for key, value in tensors.items():
    kind = base_layer.get_summary_base_type(
      base_layer.get_summary_type_from_key(key)
    )
    if kind not in (SummaryType.SCALAR, SummaryType.VIDEO):
      found[key] = Media(kind, value)
  return found


def joined(first: Media, second: Media) -> Media:
  """Media of one tag from two batches as one."""
  if isinstance(first.value, str):
    return first
  rows = [
    np.asarray(m.value).reshape(-1, *_row_shape(m)) for m in (first, second)
  ]
  value = np.concatenate(rows)
  if first.kind is not SummaryType.HISTOGRAM:
    value = value[:MAX_PER_TAG]
  return dataclasses.replace(first, value=value)


def wav(samples: np.ndarray, sample_rate: int) -> bytes:
  """A WAV file of samples [T, channels] between -1 and 1."""
  samples = np.clip(np.asarray(samples, np.float64), -1.0, 1.0)
  file = io.BytesIO()
  with wave.open(file, 'wb') as f:
    f.setnchannels(samples.shape[1])
    f.setsampwidth(2)
    f.setframerate(sample_rate)
    f.writeframes((samples * _INT16_MAX).astype('<i2').tobytes())
  return file.getvalue()


def png(image: np.ndarray) -> bytes:
  """A PNG file of uint8 [height, width, channels]."""
  height, width, channels = image.shape
  if channels not in _PNG_COLORS:
    raise ValueError(
      f'an image must have 1 to 4 channels, got shape {image.shape}; put the'
      ' channels last'
    )
  head = struct.pack('>2I5B', width, height, 8, _PNG_COLORS[channels], 0, 0, 0)
  # Each line begins with the filter it was written by: none.
  lines = np.zeros((height, 1 + width * channels), np.uint8)
  lines[:, 1:] = image.reshape(height, -1)
  chunks = ((b'IHDR', head), (b'IDAT', zlib.compress(lines)), (b'IEND', b''))
  return _PNG_MAGIC + b''.join(_png_chunk(*chunk) for chunk in chunks)


def _png_chunk(name: bytes, content: bytes) -> bytes:
  checksum = zlib.crc32(name + content)
  return (
    struct.pack('>I', len(content)) + name + content
    + struct.pack('>I', checksum)
  )  # fmt: skip


def _row_shape(one: Media) -> tuple[int, ...]:
  shape = np.shape(one.value)
  rank = {SummaryType.IMAGE: 3, SummaryType.AUDIO: 2}.get(one.kind, 0)
  return shape[len(shape) - rank :]


def _uint8(image: np.ndarray) -> np.ndarray:
  """Numbers from 0 to 1 as those from 0 to 255."""
  if image.dtype == np.uint8:
    return image
  return np.round(np.clip(image.astype(np.float64), 0, 1) * 255).astype('u1')


def _string(value: Any) -> str:
  return value.decode() if isinstance(value, bytes) else str(value)
