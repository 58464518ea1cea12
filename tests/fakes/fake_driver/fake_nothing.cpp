// SPDX-License-Identifier: Apache-2.0
// A library that opens but is no driver.
extern "C" int kvferry_nothing() { return 0; }
