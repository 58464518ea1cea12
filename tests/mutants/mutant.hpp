// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Faults in copies of the scheduler side's sources (make_mutants.py), one of which can be on.
namespace kvferry::mutants {

extern int active;  ///< Its number, from 1 on; 0: none.
extern const int num_mutants;
extern const char* const where[];  ///< By number, from 0 on: file, line and what is wrong.

}  // namespace kvferry::mutants

#define KVFERRY_MUTANT(number) (::kvferry::mutants::active == (number))
