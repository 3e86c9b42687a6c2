# needs: make gcc as ld /usr/lib/gcc /usr/include
prepare() {
    mkdir /tmp/make
    for i in $(seq "$SECONDS_LONG"); do
        { echo '#include <stdio.h>'; echo '#include <stdlib.h>'; echo '#include <string.h>'
          for f in $(seq 20); do
              echo "int f$f(char *s, int n) { for (int i = 0; i < n; i++) { s[i] ^= $f; if (s[i] > n) n -= atoi(s); }"
              echo "    return n + (int)strlen(s) + printf(\"%d\", n); }"
          done; } >"/tmp/make/u$i.c"
    done
    printf 'all: $(patsubst %%.c,%%.o,$(wildcard *.c))\n%%.o: %%.c\n\tgcc -O2 -c -o $@ $<\n' >/tmp/make/Makefile
}
score() { rm -f /tmp/make/*.o; work_done_per_second under make -s -j4 -C /tmp/make; }
