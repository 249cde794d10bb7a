/* slow.h - whether a sanitizer watches every access to memory: tests then do the same with fewer rounds. */
#ifndef DI_TESTS_SUPPORT_SLOW_H
#define DI_TESTS_SUPPORT_SLOW_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DI_TEST_SLOW 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define DI_TEST_SLOW 1
#endif
#endif
#ifndef DI_TEST_SLOW
#define DI_TEST_SLOW 0
#endif

#endif
