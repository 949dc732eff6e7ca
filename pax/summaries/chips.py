# SPDX-License-Identifier: Apache-2.0
"""Specifications of accelerators.

A row is one JAX device: half a chip of TPU v2, v3 and 7x, a chip of v4 and v5p
(megacore). Bandwidths are unidirectional.
"""

from __future__ import annotations

import dataclasses

_GIB = 2**30
_GB = 10**9

# Google Cloud's pages on each TPU version; links and DCN from Austin et al.,
# "How to Scale Your Model" (2025), chapter 2, which gives them by direction.
_TPU = 'Google Cloud TPU docs; How to Scale Your Model, ch. 2'
_TPU_LINKS_UNKNOWN = 'Google Cloud TPU docs'
# Jouppi et al., "Ten Lessons From Three Generations" (2021) and "TPU v4"
# (2023). The clocks of v5e and v5p follow from their peak FLOP/s and 2 * 128 *
# 128 FLOPs per matrix unit and cycle. Later ones have no published figure.
_CLOCK_MHZ = {
  'TPU v2': 700,
  'TPU v3': 940,
  'TPU v4': 1050,
  'TPU v5 lite': 1500,
  'TPU v5e': 1500,
  'TPU v5': 1750,
}
# Error messages of libtpu 0.0.42 limit programs to 30.75 and 15.75 GiB.
_RESERVED_GIB = {'TPU v4': 1.25, 'TPU v5 lite': 0.25, 'TPU v5e': 0.25}
# Data sheets of the boards; the network is one adapter per GPU, as in DGX
# reference systems.
_NVIDIA = 'NVIDIA data sheet; DGX reference network'
_NVIDIA_BOARD = 'NVIDIA data sheet'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
  """One device; None is unknown or not applicable."""

  # Substring of `device_kind` in JAX.
  kind: str
  # Peak FLOP/s of dense bfloat16 matmuls; float16 without bfloat16.
  flops: float
  # Cycles per second.
  clock_hz: float | None = None
  # Capacity and bandwidth of device memory, in bytes and bytes per second.
  hbm_bytes: float
  hbm_bytes_per_s: float
  # Bytes that the TPU compiler reserves for the system; 0 if unknown.
  reserved_bytes: float = 0.0
  # Bytes per second of one ICI link, or of NVLink to all GPUs of a host.
  link_bytes_per_s: float | None = None
  # Dimensions of the ICI torus; 0 for switched networks.
  torus_dims: int = 0
  # DCN bytes per second and device.
  dcn_bytes_per_s: float | None = None
  # Source of the figures.
  source: str

  @property
  def usable_bytes(self) -> float:
    """Bytes of device memory available to programs."""
    return self.hbm_bytes - self.reserved_bytes


def _tpu(
  kind: str,
  teraflops: float,
  hbm_gib: float,
  hbm_gb_per_s: float,
  *network: float,
) -> Chip:
  """Returns a TPU; `network` is torus dimensions, GB/s per link and of DCN."""
  dims, link, dcn = network or (0, None, None)
  return Chip(
    kind=kind,
    flops=teraflops * 1e12,
    clock_hz=_CLOCK_MHZ[kind] * 1e6 if kind in _CLOCK_MHZ else None,
    hbm_bytes=hbm_gib * _GIB,
    hbm_bytes_per_s=hbm_gb_per_s * _GB,
    link_bytes_per_s=link and link * _GB,
    torus_dims=int(dims),
    dcn_bytes_per_s=dcn and dcn * _GB,
    reserved_bytes=_RESERVED_GIB.get(kind, 0.0) * _GIB,
    source=_TPU if network else _TPU_LINKS_UNKNOWN,
  )


def _gpu(
  kind: str,
  teraflops: float,
  hbm_gb: float,
  hbm_gb_per_s: float,
  *network: float,
) -> Chip:
  """Returns a GPU; `network` is GB/s of NVLink and of the network adapter."""
  link, dcn = network or (None, None)
  return Chip(
    kind=kind,
    flops=teraflops * 1e12,
    hbm_bytes=hbm_gb * _GB,
    hbm_bytes_per_s=hbm_gb_per_s * _GB,
    link_bytes_per_s=link and link * _GB,
    dcn_bytes_per_s=dcn and dcn * _GB,
    source=_NVIDIA if network else _NVIDIA_BOARD,
  )


# `find` returns the first row whose kind is a substring of the device kind.
CHIPS: tuple[Chip, ...] = (
  _tpu('TPU v2', 22.5, 8, 350),
  _tpu('TPU v3', 61.5, 16, 450, 2, 50, 3.125),
  _tpu('TPU v4 lite', 138, 8, 614),
  _tpu('TPU v4', 275, 32, 1200, 3, 45, 6.25),
  _tpu('TPU v5 lite', 197, 16, 819, 2, 45, 3.125),
  _tpu('TPU v5e', 197, 16, 819, 2, 45, 3.125),
  _tpu('TPU v5', 459, 95, 2765, 3, 90, 6.25),
  _tpu('TPU v6', 918, 32, 1640, 2, 90, 12.5),
  _tpu('TPU7x', 1153.5, 96, 3690, 3, 45, 6.25),
  _tpu('TPU v7', 1153.5, 96, 3690, 3, 45, 6.25),
  _gpu('GB300', 2500, 288, 8000, 900, 100),
  _gpu('GB200', 2500, 186, 8000, 900, 50),
  _gpu('B300', 2250, 288, 8000, 900, 100),
  _gpu('B200', 2250, 180, 8000, 900, 50),
  _gpu('GH200', 989, 144, 4900, 450, 50),
  _gpu('H200', 989, 141, 4800, 450, 50),
  _gpu('H100 PCIe', 756, 80, 2000),
  _gpu('H100 NVL', 835, 94, 3900),
  _gpu('H100', 989, 80, 3350, 450, 50),
  _gpu('H800', 989, 80, 3350, 200, 50),
  _gpu('A100', 312, 80, 2039, 300, 25),
  _gpu('A800', 312, 80, 2039, 200, 25),
  _gpu('A10G', 70, 24, 600),
  _gpu('L40S', 362, 48, 864),
  _gpu('L4', 121, 24, 300),
  _gpu('V100', 125, 32, 900, 150, 12.5),
  _gpu('T4', 65, 16, 320),
)


def find(device_kind: str) -> Chip | None:
  """Returns the row of a JAX device kind; None if there is none."""
  kind = device_kind.lower()
  return next((chip for chip in CHIPS if chip.kind.lower() in kind), None)
