# SPDX-License-Identifier: Apache-2.0
"""Small train states in checkpoints, and damage to their files."""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from pax import checkpoints
from pax.checkpoints import paths
from pax.checkpoints.formats import manifest

GDA = checkpoints.CheckpointType.GDA
FLAX = checkpoints.CheckpointType.FLAX
# Type and `CheckpointOptions.use_ocdbt` of all formats.
FORMATS = ((GDA, True), (GDA, False), (FLAX, True))


class Layout(NamedTuple):
  """A format of checkpoints that training writes."""

  kind: checkpoints.CheckpointType
  is_sharded: bool
  use_ocdbt: bool = True


LAYOUTS = {
  'spmd': Layout(GDA, is_sharded=True),
  'pmap_one_file': Layout(FLAX, is_sharded=False),
  'pmap_tensorstore': Layout(GDA, is_sharded=False, use_ocdbt=False),
}


def state(
  num_devices: int, scale: float = 1.0, *, is_sharded: bool = True
) -> dict[str, Any]:
  """Returns sharded, replicated, bfloat16 and scalar leaves."""
  mesh = jax.make_mesh(
    (num_devices,), ('data',), devices=jax.devices()[:num_devices]
  )

  def place(x, *spec):
    return jax.device_put(
      x, NamedSharding(mesh, P(*spec) if is_sharded else P())
    )

  w = np.arange(16 * 24, dtype=np.float32).reshape(16, 24) * scale
  return {
    'step': place(jnp.uint32(7)),
    'mdl_vars': {
      'params': {
        'rows': place(w, 'data'),
        'columns': place(w + 0.5, None, 'data'),
        'bias': place(jnp.arange(3, dtype=jnp.bfloat16)),
      }
    },
    'opt_states': [[place(jnp.zeros((8, 3)), 'data'), place(jnp.int32(-1))]],
  }


def checkpointer(
  directory: pathlib.Path,
  kind: checkpoints.CheckpointType = GDA,
  **options: Any,
) -> checkpoints.Checkpointer:
  """Returns a checkpointer of a job directory that saves every 5 steps."""
  options = {'save_interval_steps': 5, **options}
  return checkpoints.create_checkpointer(
    checkpoints.CheckpointOptions(**options), str(directory), kind
  )


def save(
  directory: pathlib.Path,
  kind: checkpoints.CheckpointType = GDA,
  steps: Iterable[int] = (0, 5),
  num_devices: int = 4,
  *,
  is_sharded: bool = True,
  use_ocdbt: bool = True,
) -> pathlib.Path:
  """Saves a state of scale `1 + step` per step.

  Args:
    directory: The job directory.
    kind: The type of the checkpoints.
    steps: The steps.
    num_devices: Number of devices of the state.
    is_sharded: Whether leaves are sharded over them.
    use_ocdbt: See `CheckpointOptions.use_ocdbt`.

  Returns:
    The directory of the checkpoints.
  """
  saver = checkpointer(directory, kind, use_ocdbt=use_ocdbt)
  for step in steps:
    leaves = state(num_devices, 1.0 + step, is_sharded=is_sharded)
    assert saver.save(step, leaves, {'examples': step})
  saver.close()
  return pathlib.Path(directory) / paths.CHECKPOINTS


def save_layout(
  directory: pathlib.Path,
  layout: str,
  steps: Iterable[int] = (0, 5),
  num_devices: int = 4,
) -> pathlib.Path:
  """Saves as `save` does, in one of `LAYOUTS`."""
  kind, is_sharded, use_ocdbt = LAYOUTS[layout]
  return save(
    directory,
    kind,
    steps,
    num_devices,
    is_sharded=is_sharded,
    use_ocdbt=use_ocdbt,
  )


def check_equal(actual: Any, expected: Any) -> None:
  """Checks that all leaves are equal."""
  jax.tree.map(
    lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)),
    actual,
    expected,
  )


def to_older_format(checkpoint: pathlib.Path) -> None:
  """Rewrites a checkpoint as versions before the checksums of all files did."""
  if checkpoint.is_dir():
    for file in (checkpoint / paths.MANIFEST_FOLDER).iterdir():
      entries = json.loads(file.read_text())['files']
      entries.pop(paths.METADATA_FILE, None)
      file.write_text(json.dumps(entries, sort_keys=True))
    return
  tree = serialization.msgpack_restore(checkpoint.read_bytes())
  del tree['crc32']
  tree['metadata']['crc32'] = {
    name: manifest.entry(leaf)[1] for name, leaf in tree['state'].items()
  }
  checkpoint.write_bytes(serialization.msgpack_serialize(tree))


def to_older_places(checkpoint: pathlib.Path) -> None:
  """Moves the files that are in the metadata as older versions had them."""
  metadata = checkpoint / paths.METADATA_FILE
  file = manifest.file(checkpoint, 0, 1)
  prefix = f'{paths.METADATA_FILE}/train_input/'
  entries = {
    name.replace(prefix, 'train_input/'): entry
    for name, entry in json.loads(file.read_text())['files'].items()
  }
  shutil.rmtree(file.parent)
  (metadata / 'train_input').rename(checkpoint / 'train_input')
  (checkpoint / paths.MANIFEST_FOLDER).mkdir()
  manifest.write(checkpoint, entries, 0, 1)


def files(checkpoint: pathlib.Path) -> list[pathlib.Path]:
  """Returns the files of a checkpoint, itself if it is one."""
  if checkpoint.is_file():
    return [checkpoint]
  return sorted(path for path in checkpoint.rglob('*') if path.is_file())


def flip_bit(path: pathlib.Path, bit: int) -> None:
  """Inverts one bit of a file."""
  data = bytearray(path.read_bytes())
  data[bit // 8] ^= 1 << bit % 8
  path.write_bytes(data)


def _replace_by_folder(path: pathlib.Path) -> None:
  path.unlink()
  path.mkdir()


# Damage to a file that is not a flipped bit.
DAMAGES: dict[str, Callable[[pathlib.Path], Any]] = {
  'deleted': lambda path: path.unlink(),
  'empty': lambda path: path.write_bytes(b''),
  'cut by a byte': lambda path: path.write_bytes(path.read_bytes()[:-1]),
  'cut by half': lambda path: path.write_bytes(
    path.read_bytes()[: path.stat().st_size // 2]
  ),
  'cut to a byte': lambda path: path.write_bytes(path.read_bytes()[:1]),
  'longer by a zero': lambda path: path.write_bytes(path.read_bytes() + b'\0'),
  'longer by a line': lambda path: path.write_bytes(path.read_bytes() + b'\n'),
  'twice': lambda path: path.write_bytes(2 * path.read_bytes()),
  'overwritten': lambda path: path.write_bytes(b'U' * path.stat().st_size),
  'text': lambda path: path.write_bytes(b'{"a": 1}'),
  'not UTF-8': lambda path: path.write_bytes(b'\xff\xfe'),
  'a folder': _replace_by_folder,
}
