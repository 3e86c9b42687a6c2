# needs: duckdb
# Four threads that add up a table in memory by groups, and join it with itself.
prepare() {
    {
        echo "set threads = 4;"
        echo "create table t as select range a, hash(range) % 1000 b, hash(range + 7) % 100000 c from range(600000);"
        for turn in $(seq 1000); do
            echo "select b, sum(c), avg(a) from t group by b order by 2 limit 1;"
            echo "select count(*) from t x join t y on x.c = y.a;"
        done
    } >/tmp/queries.sql
}
score() {
    under timeout "$SECONDS_LONG" duckdb :memory: </tmp/queries.sql | grep -c count_star
}
