# needs: memcached memcslap
score() {
    under $ON_OTHER_CPUS memcached -u root -t 4 -l 127.0.0.1 -p 11211 &
    within 60 listens 11211
    $ON_LAST_CPU memcslap --servers=127.0.0.1:11211 --concurrency=4 --execute-number="$((SECONDS_LONG * 2000))" --test=get |
        awk '/Time to get/ { print $4 / $(NF - 1) }'
    kill "$(pidof memcached)"; wait
}
