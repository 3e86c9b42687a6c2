# needs: redis-server redis-benchmark redis-cli
score() {
    under $ON_OTHER_CPUS redis-server --save '' --bind 127.0.0.1 >/dev/null &
    within 60 redis-cli ping >/dev/null 2>&1
    $ON_LAST_CPU redis-benchmark -q -c 8 -n "$((SECONDS_LONG * 4000))" -r 100000 -d 1000 -t set,get 2>/dev/null | tr '\r' '\n' |
        awk '/requests per second/ { time += 1 / $2; tests++ } END { print tests / time }'
    redis-cli shutdown nosave 2>/dev/null; wait
}
