/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How every model says what happens and what must hold. check_models.py reads both from the sources: each event must
 * happen in the model, and each property must be broken by a mutant.
 */
#define EVENT(what) printf(what)
/* The name of a broken property is what the verifier prints. */
#define REQUIRE(property, condition) property = (condition); assert(property)

/* A bit, or two bits, per transfer. */
#define HAS(mask, t) (((mask) >> (t)) & 1)
#define FIELD(word, t) (((word) >> (2 * (t))) & 3)
#define SET_FIELD(word, t, value) word = (word) | ((value) << (2 * (t)))
