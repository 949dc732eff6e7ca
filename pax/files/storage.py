# SPDX-License-Identifier: Apache-2.0
"""Paths of local files and of objects in buckets: gs://, s3://, memory://.

A bucket has neither directories nor renames nor appends. An object appears when
it is completely written, so that one request replaces a file atomically. A tree
of objects is committed by a marker object, which is written last.

Buckets are read and written by fsspec (s3fs, gcsfs). epath is not used: it has
no memory://, prefers TensorFlow for gs:// where that is installed, and commits
an object that was not completely written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import errno
import fnmatch
import functools
import importlib
import io
import os
import pathlib
import posixpath
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent import futures
from typing import Any, Literal, TypeVar, overload

T = TypeVar('T')
PathLike = str | os.PathLike[str]

SCHEMES = ('gs', 's3', 'memory')
# Orbax's name of the object that commits a checkpoint in a bucket.
MARKER = 'commit_success.txt'
_PACKAGES = {'gs': 'gcsfs', 's3': 's3fs'}
_THREADS = 16
# Of one request of a download.
_DOWNLOAD_BYTES = 16 << 20
_MAX_REASON_CHARS = 300
# A request that takes longer fails and is repeated.
_CONNECT_SECS = 10
_READ_SECS = 60
# Objects change outside of this process: listings are never cached.
_OPTIONS: Mapping[str, Mapping[str, Any]] = {
  'gs': {'use_listings_cache': False, 'requests_timeout': _READ_SECS},
  's3': {
    'use_listings_cache': False,
    'config_kwargs': {
      'connect_timeout': _CONNECT_SECS,
      'read_timeout': _READ_SECS,
      'retries': {'mode': 'standard', 'max_attempts': 3},
    },
  },
  'memory': {},
}
# Attempts of s3fs, each with those of the client above. Its loops of attempts
# are nested where it reads: its default of 5 is hours without an answer.
_S3FS_ATTEMPTS = 2
# Of TensorStore's requests, which have none (google/tensorstore#291): they fail
# when no byte is transferred for this time. Read at its first request.
_TENSORSTORE_TIMEOUT: Mapping[str, str] = {
  'TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS': str(_READ_SECS),
  'TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES': '1',
}
# TensorStore repeats a request for less than a minute, without the timeouts.
TENSORSTORE_CONTEXT: Mapping[str, Any] = {
  f'{driver}_request_retries': {
    'max_retries': 6,
    'initial_delay': '500ms',
    'max_delay': '8s',
  }
  for driver in ('s3', 'gcs')
}


@dataclasses.dataclass(frozen=True)
class ObjectStatus:
  """Size and time of an object, by the names of `os.stat_result`."""

  st_size: int
  # Seconds since 1970.
  st_mtime: float

  @property
  def st_mtime_ns(self) -> int:
    """Nanoseconds since 1970."""
    return int(self.st_mtime * 1e9)


class BucketPath(pathlib.PurePosixPath):
  """The URL of an object or of a folder in a bucket, as a path.

  It has the methods of `pathlib.Path` that buckets can provide; there is no
  `rename`. A folder exists as long as it contains objects. Errors are OSErrors.
  """

  def __str__(self) -> str:
    first, *others = self.parts or ('',)
    if first.removesuffix(':') in SCHEMES and first.endswith(':'):
      return f'{first}//{"/".join(others)}'
    return super().__str__()

  def __fspath__(self) -> str:
    return str(self)

  @property
  def scheme(self) -> str:
    """The first part of the URL."""
    return self.parts[0].removesuffix(':')

  def absolute(self) -> BucketPath:
    return self

  def exists(self) -> bool:
    return self._call(lambda fs: bool(fs.exists(str(self))))

  def is_dir(self) -> bool:
    return self._call(lambda fs: bool(fs.isdir(str(self))))

  def is_file(self) -> bool:
    return self._call(lambda fs: bool(fs.isfile(str(self))))

  def stat(self) -> ObjectStatus:
    info = self._call(lambda fs: fs.info(str(self)))
    # Names of the time in s3fs, gcsfs, and the file system in memory.
    time = info.get('LastModified') or info.get('mtime') or info.get('created')
    if isinstance(time, str):
      time = datetime.datetime.fromisoformat(time)
    return ObjectStatus(
      int(info.get('size') or 0), time.timestamp() if time else 0.0
    )

  def iterdir(self) -> Iterator[BucketPath]:
    names = self._call(lambda fs: fs.ls(str(self), detail=False))
    for name in sorted({posixpath.basename(n.rstrip('/')) for n in names}):
      if name and name != self.name:
        yield self / name

  def files(self) -> list[str]:
    """Returns the paths of all objects below this folder, relative to it."""
    return list(self.file_sizes())

  def file_sizes(self) -> dict[str, int]:
    """Returns the sizes of all objects below this folder by relative path."""
    root, found = self._call(
      lambda fs: (
        fs._strip_protocol(str(self)),
        fs.find(str(self), detail=True),
      )
    )
    sizes = {
      path.removeprefix(root).lstrip('/'): int(info.get('size') or 0)
      for path, info in sorted(found.items())
    }
    # Some tools create an object for the folder itself.
    sizes.pop('', None)
    return sizes

  def glob(self, pattern: str) -> Iterator[BucketPath]:
    """Yields objects; each part of the pattern matches one of the path."""
    parts = pattern.split('/')
    for name in self.files():
      names = name.split('/')
      if len(names) == len(parts) and all(
        map(fnmatch.fnmatchcase, names, parts)
      ):
        yield self / name

  def read_bytes(self) -> bytes:
    return self._call(lambda fs: fs.cat_file(str(self)))

  def read_text(self, encoding: str = 'utf-8', errors: str = 'strict') -> str:
    return self.read_bytes().decode(encoding, errors)

  @overload
  def open(self, mode: str = 'rb') -> io.BufferedReader: ...

  @overload
  def open(
    self, mode: str = 'rb', *, buffering: Literal[0]
  ) -> io.RawIOBase: ...

  def open(
    self, mode: str = 'rb', buffering: int = -1
  ) -> io.RawIOBase | io.BufferedReader:
    """Opens the object for reading of bytes; only the parts read are loaded.

    Args:
      mode: `rb`.
      buffering: As of `open`; 0 loads as many bytes as each call reads.

    Raises:
      ValueError: The mode is another one: an object is written as a whole.
    """
    if mode != 'rb':
      raise ValueError(
        f'{self} can be opened with mode rb only, got {mode}; use write_bytes'
      )
    reader = _ObjectReader(self)
    return reader if buffering == 0 else io.BufferedReader(reader)

  def read_range(self, start: int, end: int) -> bytes:
    """Returns the bytes from `start` to before `end`, which exist."""
    return self._call(lambda fs: fs.cat_file(str(self), start=start, end=end))

  def write_bytes(self, data: bytes, *, is_exclusive: bool = False) -> None:
    """Replaces the object by one request.

    Args:
      data: The content.
      is_exclusive: Whether an object that exists is an error.

    Raises:
      FileExistsError: It exists.
    """
    if is_exclusive:
      self._call(lambda fs: fs.pipe_file(str(self), data, mode='create'))
    else:
      self._call(lambda fs: fs.pipe_file(str(self), data))

  def write_text(self, text: str) -> None:
    self.write_bytes(text.encode())

  def upload(self, file: pathlib.Path) -> None:
    """Replaces the object by a local file."""
    self._call(lambda fs: fs.put_file(str(file), str(self)))

  def download(self, file: pathlib.Path) -> None:
    """Writes the object to a local file."""
    # get_file of gcsfs repeats its own repetitions: without an answer that is
    # 6 times as long.
    with self.open(buffering=0) as source, file.open('wb') as target:
      shutil.copyfileobj(source, target, _DOWNLOAD_BYTES)

  def copy_to(self, target: BucketPath) -> None:
    """Copies the object within its service."""
    self._call(lambda fs: fs.cp_file(str(self), str(target)))

  def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
    """Does nothing: folders exist by their objects."""

  def unlink(self, missing_ok: bool = False) -> None:
    try:
      self._call(lambda fs: fs.rm_file(str(self)))
    except FileNotFoundError:
      if not missing_ok:
        raise

  def _call(self, function: Callable[[Any], T]) -> T:
    with _as_os_error(self):
      return function(_filesystem(self.scheme))


Path = pathlib.Path | BucketPath


class _ObjectReader(io.RawIOBase):
  """Reads an object by requests of ranges."""

  def __init__(self, path: BucketPath):
    self._path = path
    self._size = path.stat().st_size
    self._position = 0

  def readable(self) -> bool:
    return True

  def seekable(self) -> bool:
    return True

  def tell(self) -> int:
    return self._position

  def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
    start = {
      io.SEEK_SET: 0,
      io.SEEK_CUR: self._position,
      io.SEEK_END: self._size,
    }[whence]
    self._position = max(start + offset, 0)
    return self._position

  def readall(self) -> bytes:
    return self._read(self._size - self._position)

  def readinto(self, buffer: Any) -> int:
    data = self._read(len(buffer))
    buffer[: len(data)] = data
    return len(data)

  def _read(self, num_bytes: int) -> bytes:
    end = min(self._position + num_bytes, self._size)
    if end <= self._position:
      return b''
    data = self._path.read_range(self._position, end)
    self._position += len(data)
    return data


def is_url(path: PathLike) -> bool:
  """Returns whether the path is a URL."""
  return isinstance(path, BucketPath) or '://' in os.fspath(path)


def to_path(path: PathLike) -> Path:
  """Returns the path of a local file, or of an object in a bucket.

  Raises:
    ValueError: It is a URL of another scheme.
  """
  if isinstance(path, BucketPath) or not is_url(path):
    return path if isinstance(path, BucketPath) else pathlib.Path(path)
  scheme, _, rest = os.fspath(path).partition('://')
  if scheme not in SCHEMES or not rest.strip('/'):
    schemes = ', '.join(f'{s}://' for s in SCHEMES)
    raise ValueError(
      f'{path} is neither a local path nor a folder of a bucket ({schemes});'
      ' mount other storage and use the path of the mount'
    )
  return BucketPath(f'{scheme}:', rest.strip('/'))


def check_package(path: BucketPath) -> None:
  """Checks that the package that reads a bucket is installed.

  Raises:
    ValueError: It is not.
  """
  try:
    _filesystem(path.scheme)
  except ImportError as e:
    package = _PACKAGES.get(path.scheme, 'fsspec')
    raise ValueError(
      f'{path} needs the package {package}, which cannot be imported ({e}):'
      f' pip install {package}'
    ) from None


def require_local(path: PathLike, name: str) -> pathlib.Path:
  """Returns a local path.

  Args:
    path: The path.
    name: The flag or argument, for the error.

  Raises:
    ValueError: It is a URL.
  """
  if is_url(path):
    raise ValueError(
      f'{name}={os.fspath(path)} is a URL, and only local paths can be used'
      ' here: copy the files, or mount the bucket'
    )
  return pathlib.Path(path)


def files(folder: Path) -> list[str]:
  """Returns the paths of all files below a folder, relative to it."""
  if isinstance(folder, BucketPath):
    return folder.files()
  return sorted(
    os.path.relpath(os.path.join(parent, name), folder)
    for parent, _, names in os.walk(folder)
    for name in names
  )


def file_sizes(folder: Path) -> dict[str, int]:
  """Returns the sizes of all files below a folder by relative path."""
  if isinstance(folder, BucketPath):
    return folder.file_sizes()
  return {name: (folder / name).stat().st_size for name in files(folder)}


def upload_tree(
  source: pathlib.Path, target: BucketPath, names: Iterable[str]
) -> None:
  """Uploads files below a local folder, in parallel.

  Raises:
    OSError: A file cannot be uploaded.
  """
  with futures.ThreadPoolExecutor(_THREADS) as pool:
    list(pool.map(lambda name: (target / name).upload(source / name), names))


def download_tree(
  source: BucketPath, target: pathlib.Path, names: Iterable[str]
) -> None:
  """Downloads objects into a local folder, in parallel.

  Raises:
    OSError: An object cannot be downloaded.
  """
  names = list(names)
  for folder in {(target / name).parent for name in names}:
    folder.mkdir(parents=True, exist_ok=True)
  with futures.ThreadPoolExecutor(_THREADS) as pool:
    list(pool.map(lambda n: (source / n).download(target / n), names))


def remove_tree(folder: BucketPath) -> None:
  """Removes the objects of a folder, the marker that commits them first."""
  names = folder.files()
  (folder / MARKER).unlink(missing_ok=True)
  with futures.ThreadPoolExecutor(_THREADS) as pool:
    list(pool.map(lambda name: (folder / name).unlink(missing_ok=True), names))
  folder.unlink(missing_ok=True)


def move(source: Path, target: Path) -> None:
  """Renames a file or folder; in a bucket it is copied and then removed.

  Args:
    source: The file or folder.
    target: Its new path, on the same disk or in the same bucket.

  Raises:
    OSError: It cannot be renamed.
  """
  if isinstance(source, BucketPath):
    move_tree(source, BucketPath(target))
  else:
    source.rename(target)


def move_tree(source: BucketPath, target: BucketPath) -> None:
  """Copies an object, or a tree of objects, and removes the original.

  At any time at least one of them has its marker.
  """
  names = source.files()
  if not names:
    source.copy_to(target)
    source.unlink()
    return
  data = [name for name in names if name != MARKER]
  with futures.ThreadPoolExecutor(_THREADS) as pool:
    list(pool.map(lambda name: (source / name).copy_to(target / name), data))
  if MARKER in names:
    (source / MARKER).copy_to(target / MARKER)
  remove_tree(source)


def kvstore(folder: Path) -> dict[str, Any]:
  """Returns TensorStore's specification of the files below a folder.

  Of a bucket it also sets the timeout of TensorStore's requests.

  Raises:
    ValueError: TensorStore has no access to a bucket of this kind.
  """
  if not isinstance(folder, BucketPath):
    return {'driver': 'file', 'path': f'{folder}/'}
  for name, value in _TENSORSTORE_TIMEOUT.items():
    os.environ.setdefault(name, value)
  bucket, *parts = folder.parts[1:]
  path = ''.join(f'{part}/' for part in parts)
  spec: dict[str, Any] = {'bucket': bucket, 'path': path}
  if folder.scheme == 'gs':
    return {'driver': 'gcs', **spec}
  if folder.scheme != 's3':
    raise ValueError(
      f'{folder}: TensorStore has no access to {folder.scheme}://; use a bucket'
      ' with gs:// or s3://, or checkpoints of type flax'
    )
  variables = {
    'endpoint': ('AWS_ENDPOINT_URL_S3', 'AWS_ENDPOINT_URL'),
    'aws_region': ('AWS_REGION', 'AWS_DEFAULT_REGION'),
  }
  for field, names in variables.items():
    if setting := next(filter(None, map(os.environ.get, names)), None):
      spec[field] = setting
  if 'AWS_ACCESS_KEY_ID' in os.environ:
    # Otherwise it complains of missing files with profiles.
    spec['aws_credentials'] = {'type': 'environment'}
  return {'driver': 's3', **spec}


@functools.cache
def _filesystem(scheme: str) -> Any:
  """Returns the file system of fsspec, with options of FSSPEC_S3, FSSPEC_GS."""
  import fsspec

  configured = fsspec.config.conf.get(scheme, {})
  options = {**_OPTIONS[scheme], **configured}
  filesystem = fsspec.filesystem(scheme, skip_instance_cache=True, **options)
  if scheme == 's3':
    filesystem.retries = _S3FS_ATTEMPTS
  elif scheme == 'gs':
    # gcsfs depends on it, Pax does not.
    aiohttp = importlib.import_module('aiohttp')
    # As a number it is that of a whole request, however large, and gcsfs does
    # not repeat what exceeds it.
    filesystem.requests_timeout = aiohttp.ClientTimeout(
      sock_connect=_CONNECT_SECS, sock_read=filesystem.requests_timeout
    )
  return filesystem


@contextlib.contextmanager
def _as_os_error(path: BucketPath) -> Iterator[None]:
  """Raises the errors of clients as OSErrors that name the path.

  Raises:
    OSError: For any exception of the block.
  """
  try:
    yield
  except FileNotFoundError as e:
    raise FileNotFoundError(errno.ENOENT, 'no such object', str(path)) from e
  except FileExistsError as e:
    raise FileExistsError(errno.EEXIST, 'the object exists', str(path)) from e
  except (AssertionError, MemoryError):
    raise
  # botocore, aiohttp and gcsfs have errors of their own.
  except Exception as e:
    reason = ' '.join(f'{type(e).__name__}: {e}'.split())[:_MAX_REASON_CHARS]
    raise OSError(errno.EIO, reason, str(path)) from e
