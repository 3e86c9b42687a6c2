/* For the test programs in C, which end where a check does not hold. */
#ifndef CHECK_H
#define CHECK_H

#include <nodewise.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                            \
    do {                                                                                            \
        if (!(condition)) {                                                                         \
            fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #condition, nodewise_error_message()); \
            exit(1);                                                                                \
        }                                                                                           \
    } while (0)

/* A call's result, and words of the message that goes with it. */
static inline void says(nodewise_result result, nodewise_result expected, const char *words)
{
    CHECK(result == expected);
    CHECK(strstr(nodewise_error_message(), words) != NULL);
}

#endif
