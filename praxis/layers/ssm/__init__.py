# SPDX-License-Identifier: Apache-2.0
"""State space models: S4D and S5.

The continuous-time model x' = A x + B u, y = Re(C x) + D u with diagonal A is
discretized by zero-order hold with `step_size`. Training computes it as a
convolution or a parallel scan, decoding as a recurrence.

References: S4, https://arxiv.org/abs/2111.00396; S4D,
https://arxiv.org/abs/2206.11893; S5, https://arxiv.org/abs/2208.04933
"""

from praxis.alias_names import module_getattr
from praxis.layers.ssm.hippo import make_dplr_hippo as make_dplr_hippo
from praxis.layers.ssm.hippo import make_hippo as make_hippo
from praxis.layers.ssm.hippo import make_nplr_hippo as make_nplr_hippo
from praxis.layers.ssm.s4d import SSM as SSM
from praxis.layers.ssm.s4d_kernels import (
  causal_convolution as causal_convolution,
)
from praxis.layers.ssm.s4d_kernels import s4d_discretize as s4d_discretize
from praxis.layers.ssm.s4d_kernels import s4d_kernel_zoh as s4d_kernel_zoh
from praxis.layers.ssm.s4d_kernels import s4d_step as s4d_step
from praxis.layers.ssm.s5 import S5 as S5
from praxis.layers.ssm.s5_kernels import binary_operator as binary_operator
from praxis.layers.ssm.s5_kernels import s5_discretize as s5_discretize
from praxis.layers.ssm.s5_kernels import s5_parallel_scan as s5_parallel_scan
from praxis.layers.ssm.s5_kernels import s5_step as s5_step

__getattr__ = module_getattr(__name__)
