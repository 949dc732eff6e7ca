# SPDX-License-Identifier: Apache-2.0
"""Whether this is one of several TPU VMs, as Google's metadata server knows.

TPU VMs that are made by `gcloud` have no environment variables that tell.
"""

from __future__ import annotations

import os
import pathlib
import re
import urllib.error
import urllib.request

from absl import logging

_PCI_DEVICES = pathlib.Path('/sys/bus/pci/devices')
_GOOGLE = '0x1ae0'
_SERVER = 'metadata.google.internal'
_TIMEOUT_SECS = 5.0
_NUM_SLICES = re.compile(r"^MEGASCALE_NUM_SLICES: *'?(\d+)", re.MULTILINE)


def is_one_of_many() -> bool:
  """Whether other machines have TPUs of the same job; False without TPUs."""
  if 'TPU_SKIP_MDS_QUERY' in os.environ or not _has_tpus():
    return False
  if ',' in _attribute('worker-network-endpoints'):
    return True
  slices = _NUM_SLICES.search(_attribute('tpu-env'))
  return slices is not None and int(slices[1]) > 1


def _has_tpus() -> bool:
  """Whether there is a device of Google's, which network cards may be too."""
  files = _PCI_DEVICES.glob('*/vendor')
  return any(file.read_text().strip() == _GOOGLE for file in files)


def _attribute(name: str) -> str:
  """What the server knows by a name; nothing where there is no such server."""
  host = os.environ.get('GCE_METADATA_IP', _SERVER)
  request = urllib.request.Request(
    f'http://{host}/computeMetadata/v1/instance/attributes/{name}',
    headers={'Metadata-Flavor': 'Google'},
  )
  # Never by a proxy: it is a server of this machine.
  opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
  try:
    with opener.open(request, timeout=_TIMEOUT_SECS) as answer:
      return answer.read().decode()
  except (urllib.error.URLError, TimeoutError) as e:
    logging.info('The metadata server does not tell %s: %s', name, e)
    return ''
