// SPDX-License-Identifier: Apache-2.0
// Runs a test with the kernels of each instruction set.

#ifndef TESTS_CSRC_INSTRUCTION_SETS_H_
#define TESTS_CSRC_INSTRUCTION_SETS_H_

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <initializer_list>

namespace pax {

// Returns 1 if `run_all` returns other than 0, or dies, for any of the sets.
inline int RunWithEachInstructionSet(int (*run_all)()) {
  int result = 0;
  for (const char* isa : {"portable", "avx2", "avx512", "avx512_bf16"}) {
    // The choice of instructions is made once a process.
    const pid_t child = fork();
    if (child == 0) {
      setenv("PAX_KERNEL_ISA", isa, 1);
      _exit(run_all());
    }
    int status = 1;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
      result = 1;
    }
  }
  return result;
}

}  // namespace pax

#endif  // TESTS_CSRC_INSTRUCTION_SETS_H_
