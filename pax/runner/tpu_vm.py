# SPDX-License-Identifier: Apache-2.0
"""Detects a TPU VM of a multi-host slice by Google's metadata server.

TPU VMs that `gcloud` creates have no environment variables for this.
"""

from __future__ import annotations

import os
import pathlib
import re
import urllib.error
import urllib.request

from absl import logging

_PCI_DEVICES = pathlib.Path('/sys/bus/pci/devices')
_GOOGLE_VENDOR_ID = '0x1ae0'
_SERVER = 'metadata.google.internal'
_TIMEOUT_SECS = 5.0
_NUM_SLICES = re.compile(r"^MEGASCALE_NUM_SLICES: *'?(\d+)", re.MULTILINE)


def is_multihost() -> bool:
  """Returns whether other machines have TPUs of the same job."""
  if 'TPU_SKIP_MDS_QUERY' in os.environ or not _has_google_device():
    return False
  if ',' in _attribute('worker-network-endpoints'):
    return True
  slices = _NUM_SLICES.search(_attribute('tpu-env'))
  return slices is not None and int(slices[1]) > 1


def _has_google_device() -> bool:
  """Whether a PCI device is Google's: a TPU, or a network card."""
  files = _PCI_DEVICES.glob('*/vendor')
  return any(file.read_text().strip() == _GOOGLE_VENDOR_ID for file in files)


def _attribute(name: str) -> str:
  """An instance attribute, or '' if there is no metadata server."""
  host = os.environ.get('GCE_METADATA_IP', _SERVER)
  request = urllib.request.Request(
    f'http://{host}/computeMetadata/v1/instance/attributes/{name}',
    headers={'Metadata-Flavor': 'Google'},
  )
  # A proxy cannot reach the server, which is local to the machine.
  opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
  try:
    with opener.open(request, timeout=_TIMEOUT_SECS) as response:
      return response.read().decode()
  except (urllib.error.URLError, TimeoutError) as e:
    logging.info('The metadata server did not return %s: %s', name, e)
    if isinstance(e, urllib.error.HTTPError):
      e.close()
    return ''
