# needs: setpriv /usr/lib/postgresql/*/bin /usr/lib/postgresql/*/lib /usr/share/postgresql
prepare() {
    pg=$(echo /usr/lib/postgresql/*/bin)
    as_nobody() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
    mkdir -m 777 /tmp/pg && as_nobody "$pg/initdb" -D /tmp/pg/data -U nobody -A trust --no-sync >/dev/null
    serve; as_nobody "$pg/pgbench" -h /tmp/pg -U nobody -i -q -s 4 postgres >/dev/null 2>&1; stop
}
serve() {
    "$@" setpriv --reuid 65534 --regid 65534 --clear-groups \
        "$pg/postgres" -D /tmp/pg/data -k /tmp/pg -c fsync=off -c autovacuum=off >/tmp/pg/log 2>&1 &
    within 60 "$pg/pg_isready" -q -h /tmp/pg
}
stop() { as_nobody "$pg/pg_ctl" stop -D /tmp/pg/data -m fast >/dev/null; wait; }
score() {
    serve under $ON_OTHER_CPUS
    as_nobody $ON_LAST_CPU "$pg/pgbench" -h /tmp/pg -U nobody -n $OPTIONS -c 4 -j 2 -T "$SECONDS_LONG" postgres |
        awk '/^tps/ { print $3 }'
    stop
}
