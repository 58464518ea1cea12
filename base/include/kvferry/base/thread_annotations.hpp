// SPDX-License-Identifier: Apache-2.0
#pragma once

// Clang's lock annotations (checked by the preset `tidy`'s -Wthread-safety); nothing elsewhere.

#if defined(__clang__)
#define KVFERRY_ANNOTATE(x) __attribute__((x))
#else
#define KVFERRY_ANNOTATE(x)
#endif

#define KVFERRY_CAPABILITY(name) KVFERRY_ANNOTATE(capability(name))
#define KVFERRY_SCOPED_CAPABILITY KVFERRY_ANNOTATE(scoped_lockable)
#define KVFERRY_GUARDED_BY(mutex) KVFERRY_ANNOTATE(guarded_by(mutex))
#define KVFERRY_REQUIRES(...) KVFERRY_ANNOTATE(requires_capability(__VA_ARGS__))
#define KVFERRY_EXCLUDES(...) KVFERRY_ANNOTATE(locks_excluded(__VA_ARGS__))
#define KVFERRY_ACQUIRE(...) KVFERRY_ANNOTATE(acquire_capability(__VA_ARGS__))
#define KVFERRY_RELEASE(...) KVFERRY_ANNOTATE(release_capability(__VA_ARGS__))
#define KVFERRY_NO_THREAD_SAFETY_ANALYSIS KVFERRY_ANNOTATE(no_thread_safety_analysis)
